"""One admitted run from its start to its end: submit, relay, abort, and exactly one completion.

The process listens on `run:<run_id>` before it submits, so no event is missed, and follows the
gateway's own stream so that a lost run is noticed. The first completion wins, whether the
gateway's or one made here; later ones are ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import count
from typing import Final

import anyio

from lemon_core.bridges import (
    EngineRuntime,
    ExecutionRejected,
    RunIdConflict,
    RunNotFound,
    RunSnapshot,
    StreamLost,
    SubmitReceipt,
)
from lemon_core.bus import Subscription
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.events import Completion, Delta, EngineAction, Event, RunCompleted
from lemon_core.logs import get_logger
from lemon_core.phases import RunPhase
from lemon_core.runs import InvalidCommand
from lemon_core.util import capped_backoff
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission

log = get_logger("lemon_router.run_process")

RETRY_BASE_MS: Final = 100
RETRY_MAX_MS: Final = 2_000
ABORT_GRACE_MS: Final = 150
LOSS_GRACE_MS: Final = 200
CHECK_INTERVAL_MS: Final = 15_000


class RunProcess:
    """Drives one run; `run` returns when it has its end."""

    def __init__(
        self,
        submission: Submission,
        *,
        engine: EngineRuntime,
        relay: RunRelay,
        clock: Clock,
        bind_resume: Callable[[Submission], Awaitable[Submission]],
        on_receipt: Callable[[SubmitReceipt], None],
    ) -> None:
        self.submission = submission
        self.phases = relay.phases
        self.completion: RunCompleted | None = None
        self._engine = engine
        self._relay = relay
        self._clock = clock
        self._bind_resume = bind_resume
        self._on_receipt = on_receipt
        self._abort_reason: str | None = None
        self._abort_asked = anyio.Event()
        self._ended = anyio.Event()

    @property
    def run_id(self) -> str:
        """The run this process drives."""
        return self.submission.run_id

    def abort(self, reason: str) -> None:
        """Ask the run to end; the first reason counts, and nothing is submitted afterwards."""
        if self._abort_reason is None:
            self._abort_reason = reason
            self._abort_asked.set()

    def crashed(self) -> None:
        """Publish an end for a process that broke; a later one of the gateway is ignored."""
        self._synthesize("run_process_terminated")

    async def run(self) -> RunCompleted:
        """Drive the run to its end and return how it ended."""
        with self._relay.listen() as events:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, events)
                tasks.start_soon(self._drive)
                tasks.start_soon(self._watch_abort)
                await self._ended.wait()
                tasks.cancel_scope.cancel()
        assert self.completion is not None  # _ended is set by _complete alone
        return self.completion

    async def _pump(self, events: Subscription) -> None:
        """Relay what is published for the run, until its completion."""
        while batch := await events.receive_batch():
            for event in batch:
                if self.completion is None:
                    self._take(event)

    def _take(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, RunCompleted):
            self._complete(event, payload)
            return
        if isinstance(payload, Delta | EngineAction):
            self.phases.step(RunPhase.STREAMING, event.type)
        elif event.type == "run_started":
            self.phases.step(RunPhase.STARTING_ENGINE, event.type)
        elif event.type == "engine_completed":
            self.phases.step(RunPhase.FINALIZING, event.type)
        self._relay.relay(event)

    def _complete(self, event: Event, payload: RunCompleted) -> None:
        if self.completion is not None:
            return
        self.completion = payload
        # The phase goes first: run_completed is the last thing a watcher sees of a run.
        self.phases.end(ok=payload.completed.ok, error=payload.completed.error)
        self._relay.relay(event)
        self._ended.set()

    async def _drive(self) -> None:
        self.submission = await self._bind_resume(self.submission)
        receipt = await self._submit()
        if receipt is None:
            return
        self.phases.step(RunPhase.DISPATCHED_TO_GATEWAY, "submit")
        self._on_receipt(receipt)
        await self._follow()

    async def _submit(self) -> SubmitReceipt | None:
        """Hand the command over, for as long as it takes; None when the run ended without it."""
        attempt = 0
        while self._abort_reason is None:
            try:
                return await self._engine.submit_execution(self.submission.command)
            except (InvalidCommand, RunIdConflict) as exc:
                self._synthesize({"code": exc.code, "message": str(exc)})
                return None
            except ExecutionRejected as exc:
                log.info("run.submit_refused", run_id=self.run_id, reason=exc.reason)
            except (LemonError, OSError) as exc:
                log.warning("run.submit_failed", run_id=self.run_id, error=str(exc))
            delay = capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS)
            attempt += 1
            await self._sleep_unless_aborted(delay)
        self._synthesize(self._abort_reason)
        return None

    async def _sleep_unless_aborted(self, delay_ms: int) -> None:
        async with anyio.create_task_group() as tasks:

            async def wait_for_abort() -> None:
                await self._abort_asked.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_abort)
            await self._clock.sleep(delay_ms)
            tasks.cancel_scope.cancel()

    async def _follow(self) -> None:
        """Notice a run that the gateway lost, or whose end did not come over the bus."""
        reason = await self._checked_for() if await self._shares_bus() else await self._streamed()
        await self._clock.sleep(LOSS_GRACE_MS)
        snapshot = await self._snapshot()
        if snapshot is not None and snapshot.terminal is not None:
            self._end_from(snapshot)
        else:
            self._synthesize({"code": "gateway_run_down", "detail": reason})

    async def _shares_bus(self) -> bool:
        try:
            return await self._engine.shares_bus()
        except (LemonError, OSError):
            return False

    async def _checked_for(self) -> str:
        """Returns when a gateway on this bus no longer works on the run.

        Its events are here by themselves, the end included: a stream of them would double the cost
        of a run. This is for the case that should not be, so it is looked for seldom.
        """
        while True:
            await self._clock.sleep(CHECK_INTERVAL_MS)
            try:
                snapshot = await self._engine.get_run(self.run_id)
            except (LemonError, OSError):
                continue
            if snapshot is None or snapshot.terminal is not None:
                return "not_found" if snapshot is None else "ended_unseen"

    async def _streamed(self) -> str:
        """Returns when the gateway's own stream of the run is over, with the reason."""
        try:
            async with aclosing(self._engine.subscribe(self.run_id)) as stream:
                async for _ in stream:
                    pass
        except (RunNotFound, StreamLost) as exc:
            return exc.code
        return "stream_ended"

    async def _snapshot(self) -> RunSnapshot | None:
        try:
            return await self._engine.get_run(self.run_id)
        except (LemonError, OSError):
            return None

    def _end_from(self, snapshot: RunSnapshot) -> None:
        """A real completion that was only found by asking."""
        assert snapshot.terminal is not None
        self._end(RunCompleted(completed=snapshot.terminal, duration_ms=snapshot.duration_ms))

    def _synthesize(self, error: str | dict[str, object]) -> None:
        """End the run here, because no completion will come."""
        completed = Completion(
            ok=False,
            answer="",
            error=error,
            run_id=self.run_id,
            session_key=self.submission.session_key,
            meta={"synthetic": True},
        )
        self._end(RunCompleted(completed=completed))

    def _end(self, payload: RunCompleted) -> None:
        """Publish an end that did not come from the gateway's events, unless the run has one."""
        if self.completion is None:
            event = self._relay.own_event("run_completed", payload)
            self._relay.announce(event)
            self._complete(event, payload)

    async def _watch_abort(self) -> None:
        await self._abort_asked.wait()
        reason = self._abort_reason or "user_requested"
        await self._engine.cancel_by_run_id(self.run_id, reason)
        for attempt in count():
            await self._clock.sleep(capped_backoff(ABORT_GRACE_MS, attempt, RETRY_MAX_MS))
            snapshot = await self._snapshot()
            if snapshot is None:
                self._synthesize(reason)
                return
            # The submission may have arrived after the cancellation did.
            if snapshot.terminal is None:
                await self._engine.cancel_by_run_id(self.run_id, reason)
