"""The launcher of one conversation: one run at a time, in the order of submission.

It knows no queue modes. It waits for a slot, starts the run at the head of its queue and waits for
its end. A request leaves the queue only once its run has started, and it may fail to start three
times, counted over all slots it was granted; then it ends like a run that failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from lemon_core.clock import Clock
from lemon_core.events import ErrorValue
from lemon_core.runs import InvalidCommand
from lemon_core.util import truncate_utf8
from lemon_gateway.errors import START_ERROR_MAX_BYTES, error_value, exception_text
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.slots import Grant, Refusal, WorkerToken

MAX_START_ATTEMPTS = 3
RETRY_DELAY_MS = 100
RESEND_AFTER_MS = 30_000


@dataclass(slots=True)
class QueuedRequest:
    """A request and its start attempts so far; both move on to a successor of the worker."""

    request: ExecutionRequest
    attempts: int = 0
    last_error: str = ""

    def failed(self, reason: str) -> bool:
        """Count a failed start; True when there is no attempt left."""
        self.attempts += 1
        self.last_error = truncate_utf8(reason, START_ERROR_MAX_BYTES)
        return self.attempts >= MAX_START_ATTEMPTS

    def error(self) -> dict[str, object]:
        """How this request ends when its budget is spent."""
        return error_value(
            "run_start_failed",
            f"the run did not start in {self.attempts} attempts",
            {"attempts": self.attempts, "reason": self.last_error},
        )


class WorkerQueue:
    """What waits, what runs and which grant is expected: pure state."""

    def __init__(self) -> None:
        self.items: deque[QueuedRequest] = deque()
        self.expecting: int | None = None
        self.running: str | None = None
        self.closing = False
        self._asked_at_ms = 0

    def enqueue(self, item: QueuedRequest) -> bool:
        """Take `item`, unless the worker is about to stop."""
        if self.closing:
            return False
        self.items.append(item)
        return True

    def expect(self, request_token: int, now_ms: int) -> None:
        """From now on only the grant of `request_token` is welcome."""
        self.expecting, self._asked_at_ms = request_token, now_ms

    def accept(self, grant: Grant) -> bool:
        """True when `grant` is the one expected and there is something to run with it."""
        wanted = grant.request_token == self.expecting
        if not wanted or self.running is not None or not self.items:
            return False
        self.expecting = None
        return True

    def start(self) -> ExecutionRequest:
        """The run of the head has started: it leaves the queue."""
        request = self.items.popleft().request
        self.running = request.run_id
        return request

    def finish(self) -> None:
        """The run is over."""
        self.running = None

    def remove(self, run_id: str) -> ExecutionRequest | None:
        """Take a request out before it ran; None when it is not waiting here."""
        for item in self.items:
            if item.request.run_id == run_id:
                self.items.remove(item)
                return item.request
        return None

    def resend_due(self, now_ms: int) -> bool:
        """True when a grant has been due for so long that asking again cannot hurt."""
        return self.expecting is not None and now_ms - self._asked_at_ms >= RESEND_AFTER_MS

    def close_if_idle(self) -> bool:
        """Refuse further requests when nothing is left to do."""
        self.closing = self.closing or not self.items
        return self.closing

    def drain(self) -> list[QueuedRequest]:
        """Close, and hand out what never ran."""
        self.closing = True
        rest = list(self.items)
        self.items.clear()
        return rest


class SlotSource(Protocol):
    """What a worker needs of the scheduler. A grant comes back through `ThreadWorker.offer`."""

    def request_slot(self, worker: WorkerToken, request_token: int) -> Grant | Refusal:
        """Ask for a slot."""

    def withdraw_slot_request(self, worker: WorkerToken) -> None:
        """Give up the place in line."""

    def release_slot(self, slot_id: int) -> None:
        """Give a slot back; twice is harmless."""


class StartedRun(Protocol):
    """A registered run, not yet executing."""

    async def execute(self) -> None:
        """Live until the run has ended, with its end told to everybody. Raises nothing."""


class RunStarter(Protocol):
    """Makes runs of requests, and ends those that never became one."""

    def start(self, request: ExecutionRequest, slot_id: int) -> StartedRun:
        """Register the run; may raise anything. `InvalidCommand` is not tried again."""

    async def end_unstarted(self, request: ExecutionRequest, error: ErrorValue) -> None:
        """End `request` as failed, in the way a run ends."""


class ThreadWorker:
    """One conversation's task. Stops when nothing is queued; a successor has another token."""

    def __init__(
        self,
        token: WorkerToken,
        slots: SlotSource,
        starter: RunStarter,
        clock: Clock,
        request_tokens: Iterator[int] | None = None,
    ) -> None:
        self.token = token
        self._slots = slots
        self._starter = starter
        self._clock = clock
        self._request_tokens = request_tokens or count(1)
        self._queue = WorkerQueue()
        self._grant: Grant | None = None
        self._wake = asyncio.Event()

    @property
    def run_id(self) -> str | None:
        """The run that executes or is next in line."""
        if self._queue.running is not None or not self._queue.items:
            return self._queue.running
        return self._queue.items[0].request.run_id

    @property
    def queue_len(self) -> int:
        """How many requests wait here."""
        return len(self._queue.items)

    def enqueue(self, item: QueuedRequest) -> bool:
        """Queue a request; False when the worker is stopping and a successor must take it."""
        taken = self._queue.enqueue(item)
        self._wake.set()
        return taken

    def offer(self, grant: Grant) -> bool:
        """Take a slot; False hands it straight back."""
        if not self._queue.accept(grant):
            return False
        self._grant = grant
        self._wake.set()
        return True

    def remove(self, run_id: str) -> ExecutionRequest | None:
        """Take a request out of the queue before it ran."""
        request = self._queue.remove(run_id)
        self._wake.set()
        return request

    def drain(self) -> list[QueuedRequest]:
        """Stop taking requests, and hand out what never ran."""
        return self._queue.drain()

    def resend_if_due(self) -> None:
        """Ask again for a slot that is long overdue; the place in line stays."""
        if self._queue.resend_due(self._clock.monotonic_ms()) and self._queue.expecting is not None:
            token = self._queue.expecting
            self._queue.expect(token, self._clock.monotonic_ms())
            self._slots.request_slot(self.token, token)

    async def serve(self) -> None:
        """Run everything that is queued, then stop."""
        while not self._queue.close_if_idle():
            grant = await self._next_grant()
            if grant is not None:
                await self._run_head(grant)

    async def _next_grant(self) -> Grant | None:
        """A slot for the head of the queue; None when the queue emptied meanwhile."""
        request_token = next(self._request_tokens)
        self._queue.expect(request_token, self._clock.monotonic_ms())
        if self._slots.request_slot(self.token, request_token) == "superseded":
            raise RuntimeError("the worker was superseded")
        while self._grant is None and self._queue.items:
            self._wake.clear()
            await self._wake.wait()
        grant, self._grant = self._grant, None
        self._queue.expecting = None
        if self._queue.items:
            return grant
        self._slots.withdraw_slot_request(self.token)
        if grant is not None:
            self._slots.release_slot(grant.slot_id)
        return None

    async def _run_head(self, grant: Grant) -> None:
        item = self._queue.items[0]
        try:
            run = self._starter.start(item.request, grant.slot_id)
        except Exception as exc:  # whatever stops a start costs one attempt of this request
            self._slots.release_slot(grant.slot_id)
            await self._start_failed(item, exc)
            return
        self._queue.start()
        try:
            await run.execute()
        finally:
            self._queue.finish()
            self._slots.release_slot(grant.slot_id)

    async def _start_failed(self, item: QueuedRequest, exc: Exception) -> None:
        spent = item.failed(exception_text(exc))
        if not spent and not isinstance(exc, InvalidCommand):
            await self._clock.sleep(RETRY_DELAY_MS * item.attempts)
            return
        # A cancel may have taken the request out and ended it while nobody looked.
        if self._queue.remove(item.request.run_id) is not None:
            await self._starter.end_unstarted(item.request, item.error())
