"""Hands out execution slots to conversations, and starts and buries their workers.

All decisions are in `slots.py`; this is the part with tasks. Everything but the worker tasks runs
in plain functions, so that no state is seen half changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.resume import NATIVE_ENGINE, ConversationKey
from lemon_core.telemetry import Telemetry
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.slots import Grant, Refusal, Slots, WorkerToken
from lemon_gateway.thread_worker import QueuedRequest, RunStarter, SlotSource, ThreadWorker

RESEND_CHECK_MS = 5_000
SWEEP_EVERY_CHECKS = 6
WORKER_START_ATTEMPTS = 2

log = get_logger("lemon_gateway.scheduler")


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Load of the scheduler at one moment."""

    in_flight: int
    waitq: int
    max: int


class Introspection(Protocol):
    """Where the scheduler notes what happened. It is called on the way of every run: it returns at
    once, and writes later."""

    def record(
        self,
        event_type: str,
        payload: Mapping[str, object],
        *,
        run_id: str | None = None,
        session_key: str | None = None,
        engine: str | None = None,
    ) -> object:
        """Keep one record."""


WorkerFactory = Callable[[WorkerToken, SlotSource, RunStarter, Clock], ThreadWorker]


class Scheduler:
    """One line and `max_slots` slots for all conversations."""

    def __init__(
        self,
        starter: RunStarter,
        clock: Clock,
        telemetry: Telemetry,
        *,
        max_slots: int,
        make_worker: WorkerFactory = ThreadWorker,
        introspection: Introspection | None = None,
    ) -> None:
        self._starter = starter
        self._clock = clock
        self._telemetry = telemetry
        self._make_worker = make_worker
        self._introspection = introspection
        self._slots = Slots(max_slots)
        self._workers: dict[ConversationKey, ThreadWorker] = {}
        self._tasks: TaskGroup | None = None
        self._somebody_waits = anyio.Event()

    @property
    def running(self) -> bool:
        """True while workers can be started."""
        return self._tasks is not None

    def counts(self) -> SlotCounts:
        """How full it is."""
        return SlotCounts(len(self._slots.in_flight), len(self._slots.waitq), self._slots.max_slots)

    def worker_count(self) -> int:
        """How many conversations have a worker."""
        return len(self._workers)

    async def submit(self, request: ExecutionRequest) -> None:
        """Queue `request` behind its conversation; returns without waiting for a slot."""
        await self._place(QueuedRequest(request))

    def remove_queued(self, request: ExecutionRequest) -> bool:
        """Take a request out of the line before it ran; the caller ends it."""
        worker = self._workers.get(request.conversation_key)
        return worker is not None and worker.remove(request.run_id) is not None

    def request_slot(self, worker: WorkerToken, request_token: int) -> Grant | Refusal:
        """See `SlotSource`; a slot that is free now is offered before this returns."""
        answer = self._slots.request(worker, request_token, self._clock.monotonic_ms())
        if isinstance(answer, Grant):
            self._deliver([answer])
        elif answer == "queued":
            self._emit("slot_queued", worker)
            self._somebody_waits.set()
        return answer

    def withdraw_slot_request(self, worker: WorkerToken) -> None:
        """See `SlotSource`."""
        self._slots.withdraw(worker)

    def release_slot(self, slot_id: int) -> None:
        """Free a slot and grant on; unknown ids are ignored."""
        held = self._slots.in_flight.get(slot_id)
        if held is not None:
            grants = self._slots.release(slot_id, self._clock.monotonic_ms())
            self._emit("slot_released", held.worker)
            counts = {"in_flight": len(self._slots.in_flight), "max": self._slots.max_slots}
            self._note("scheduled_job_completed", counts, held.worker)
            self._deliver(grants)

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Run the workers until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def keep_house(self) -> None:
        """While somebody waits: ask again for overdue grants, and sweep out workers that are gone.

        Neither changes anything as long as every grant and every death arrives.
        """
        checks = 0
        while True:
            await self._somebody_waits.wait()
            await self._clock.sleep(RESEND_CHECK_MS)
            checks += 1
            for worker in tuple(self._workers.values()):
                worker.resend_if_due()
            if checks % SWEEP_EVERY_CHECKS == 0:
                gone = self._slots.sweep(
                    lambda token: self._worker(token) is not None, self._clock.monotonic_ms()
                )
                self._deliver(gone)
            if not self._slots.waitq:
                self._somebody_waits = anyio.Event()

    async def _place(self, item: QueuedRequest) -> None:
        """Give `item` to the conversation's worker, a new one if need be, or end it."""
        if not self._enqueue(item):
            await self._starter.end_unstarted(item.request, "worker_unavailable")

    def _enqueue(self, item: QueuedRequest) -> bool:
        key = item.request.conversation_key
        worker = self._workers.get(key)
        taken = worker is not None and worker.enqueue(item)
        if not taken:
            taken = any(self._start_worker(key, item) for _ in range(WORKER_START_ATTEMPTS))
        if taken:
            worker, run_id = self._workers[key], item.request.run_id
            queued = {"queue_len": worker.queue_len}
            self._note("thread_message_dispatched", queued, worker.token, run_id)
        return taken

    def _start_worker(self, key: ConversationKey, item: QueuedRequest) -> bool:
        token = self._slots.new_generation(key)
        try:
            if self._tasks is None:
                raise RuntimeError("the scheduler is not running")
            worker = self._make_worker(token, self, self._starter, self._clock)
            worker.enqueue(item)
            self._workers[key] = worker
            self._tasks.start_soon(self._run_worker, worker)
            self._note("thread_started", {}, token)
        except Exception:  # the request that asked for the worker must get an end either way
            log.exception("thread_worker.not_started", key_kind=key[0])
            self._workers.pop(key, None)
            self._deliver(self._slots.retire(token, self._clock.monotonic_ms()))
            return False
        return True

    async def _run_worker(self, worker: ThreadWorker) -> None:
        died = False
        try:
            await worker.serve()
        except Exception:  # a broken worker must not take the other conversations along
            log.exception("thread_worker.died", key_kind=worker.token.key[0])
            died = True
        finally:
            orphans = self._bury(worker)
        if died and orphans and orphans[0].failed("its worker died"):
            spent = orphans.pop(0)
            await self._starter.end_unstarted(spent.request, spent.error())
        for item in orphans:
            await self._place(item)

    def _bury(self, worker: ThreadWorker) -> list[QueuedRequest]:
        """Forget a worker that stopped or died; the requests that it leaves behind."""
        if self._workers.get(worker.token.key) is worker:
            del self._workers[worker.token.key]
        self._deliver(self._slots.retire(worker.token, self._clock.monotonic_ms()))
        left = worker.drain()
        self._note("thread_terminated", {"queue_len": len(left)}, worker.token)
        return left

    def _deliver(self, grants: Iterable[Grant]) -> None:
        """Offer each slot to the worker it was granted to; what nobody takes is granted on."""
        pending = deque(grants)
        while pending:
            grant = pending.popleft()
            worker = self._worker(grant.worker)
            if worker is None or not worker.offer(grant):
                pending.extend(self._slots.release(grant.slot_id, self._clock.monotonic_ms()))
            else:
                self._emit("slot_granted", grant.worker, wait_ms=grant.waited_ms)
                self._note("scheduled_job_triggered", {}, grant.worker)

    def _worker(self, token: WorkerToken) -> ThreadWorker | None:
        worker = self._workers.get(token.key)
        return worker if worker is not None and worker.token == token else None

    def _emit(self, what: str, token: WorkerToken, **measurements: int) -> None:
        worker = self._worker(token)
        self._telemetry.emit(
            f"lemon.gateway.scheduler.{what}",
            {
                "in_flight": len(self._slots.in_flight),
                "max": self._slots.max_slots,
                "waitq": len(self._slots.waitq),
                "count": 1,
                **measurements,
            },
            {"run_id": worker.run_id if worker else None, "key_kind": token.key[0]},
        )

    def _note(
        self,
        event_type: str,
        payload: Mapping[str, object],
        token: WorkerToken,
        run_id: str | None = None,
    ) -> None:
        """Record what happened to a worker; by default, with the run that it is about to have."""
        if self._introspection is None:
            return
        worker, key = self._worker(token), token.key
        self._introspection.record(
            event_type,
            payload,
            run_id=run_id or (worker.run_id if worker else None),
            session_key=key[1] if key[0] == "session" else None,
            engine=NATIVE_ENGINE,
        )


@asynccontextmanager
async def running_scheduler(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    """`scheduler` with its workers; leaving the block cancels those that are left."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        try:
            yield scheduler
        finally:
            tasks.cancel_scope.cancel()
