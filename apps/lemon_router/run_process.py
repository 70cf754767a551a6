"""One admitted run from its start to its end: submit, relay, abort, and exactly one completion.

The process listens on `run:<run_id>` before it submits, so no event is missed, and follows the
gateway's own stream so that a lost run is noticed. The first completion wins, whether the
gateway's or one made here; later ones are ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Literal, Protocol

import anyio
from anyio.abc import TaskGroup

from lemon_core.bridges import (
    EngineRuntime,
    ExecutionRejected,
    RunIdConflict,
    RunSnapshot,
    SubmitReceipt,
)
from lemon_core.bus import Subscription
from lemon_core.clock import Clock
from lemon_core.events import (
    Delta,
    EngineAction,
    ErrorValue,
    Event,
    RunCompleted,
    RunFailed,
)
from lemon_core.logs import get_logger
from lemon_core.phases import RunPhase
from lemon_core.runs import InvalidCommand
from lemon_core.store import RunRecord
from lemon_core.util import capped_backoff
from lemon_core.waiting import first_of
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission
from lemon_router.run_at_gateway import NODE_LOST, RunAtGateway
from lemon_router.run_ends import (
    GATEWAY_RUN_DOWN,
    RUN_LOST,
    TERMINATED,
    completed_of,
    synthetic_end,
)
from lemon_router.watchdog import Watchdog

log = get_logger("lemon_router.run_process")

RETRY_BASE_MS: Final = 100
RETRY_MAX_MS: Final = 2_000
ABORT_GRACE_MS: Final = 150
LOSS_GRACE_MS: Final = 200
CRASH_GRACE_MS: Final = 20
PROGRESS_EVENTS: Final = 50
"""After how many events of the gateway the place in its stream is stored anew."""
RESTART: Final = "restart"
Fate = Literal["again"]
"""The run never began and may be submitted again; otherwise it has its end."""


class Records(Protocol):
    """What is stored of runs (core's `RunStore`)."""

    async def get(self, run_id: str) -> RunRecord | None:
        """The run's record; raises `StoreError`."""


@dataclass(frozen=True, slots=True)
class Former:
    """What a former process knew of the run: it is looked for before it is submitted."""

    stream_epoch: str | None = None
    last_event_seq: int = 0


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """What every run process uses.

    `prepare` returns the submission as it is to be sent; it may wait. `on_receipt` and
    `on_progress` store where a run lives and how far its stream was relayed; neither waits.
    """

    engine: EngineRuntime
    records: Records
    clock: Clock
    prepare: Callable[[Submission], Awaitable[Submission]]
    on_receipt: Callable[[str, SubmitReceipt], None]
    on_progress: Callable[[str, int], None] = field(default=lambda run_id, seq: None)
    idle_timeout_ms: int = 0


class RunProcess:
    """Drives one run; `run` returns when it has its end, or has been let go."""

    def __init__(
        self,
        submission: Submission,
        relay: RunRelay,
        parts: ProcessParts,
        former: Former | None = None,
    ) -> None:
        self.submission = submission
        self.phases = relay.phases
        self.completion: RunCompleted | None = None
        self.streamed_text = False
        self._relay, self._parts, self._former = relay, parts, former
        self._engine, self._clock = parts.engine, parts.clock
        self._there = RunAtGateway(submission.run_id, parts.engine, parts.clock)
        self._abort_reason: str | None = None
        self._abort_asked = anyio.Event()
        self._submitted = False
        self._is_watched = False
        self._ended = anyio.Event()
        # While the run is driven: what it hears, and the tasks that help.
        self._heard: Subscription | None = None
        self._tasks: TaskGroup | None = None
        self._epoch = "" if former is None else former.stream_epoch or ""
        self._last_seq = 0 if former is None else former.last_event_seq
        self._noted_seq = self._last_seq
        self._watchdog = Watchdog(parts.clock, parts.idle_timeout_ms)

    @property
    def run_id(self) -> str:
        """The run this process drives."""
        return self.submission.run_id

    @property
    def submitted(self) -> bool:
        """True from the moment the gateway may have the run."""
        return self._submitted or self._former is not None

    def abort(self, reason: str) -> None:
        """Ask the run to end; the first reason counts, and nothing is submitted afterwards."""
        if self._abort_reason is None:
            self._abort_reason = reason
            self._abort_asked.set()
            if self._tasks is not None:
                self._tasks.start_soon(self._watch_abort, reason)

    def keep_alive(self) -> None:
        """Somebody wants to wait longer for a silent run."""
        self._watchdog.touch()

    def detach(self) -> None:
        """Let the run go on without this process: a later one finds it again."""
        self._stop()

    def crashed(self) -> None:
        """Publish an end for a process that broke; a later one of the gateway is ignored."""
        if self.completion is None:
            self.completion = synthetic_end(self.submission, TERMINATED)
            self.phases.end(ok=False, error=TERMINATED)
            session = self.submission.session_key
            failed = RunFailed(run_id=self.run_id, reason=TERMINATED, session_key=session)
            self._relay.publish("run_failed", failed)

    async def run(self) -> RunCompleted | None:
        """Drive the run to its end and return how it ended; None when it was let go."""
        with self._relay.listen() as self._heard:
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._drive)
                    if self._abort_reason is not None:
                        self._tasks.start_soon(self._watch_abort, self._abort_reason)
                    await self._pump(self._heard)
                    await self._ended.wait()
                    self._tasks.cancel_scope.cancel()
            finally:
                self._heard = self._tasks = None
        return self.completion

    def _stop(self) -> None:
        self._ended.set()
        if self._heard is not None:
            self._heard.close()

    # Relaying

    async def _pump(self, events: Subscription) -> None:
        """Relay what is published for the run, until its completion."""
        while not self._ended.is_set() and (batch := await events.receive_batch()):
            self._watchdog.touch()
            for event in batch:
                if self.completion is None:
                    self._take(event)

    def _take(self, event: Event) -> None:
        payload = event.payload
        self._note_place(event)
        if isinstance(payload, RunCompleted):
            self._complete(event, payload)
            return
        if isinstance(payload, Delta | EngineAction):
            self.streamed_text = self.streamed_text or isinstance(payload, Delta)
            self.phases.step(RunPhase.STREAMING, event.type)
        elif event.type == "run_started":
            # It may be here before the answer to the submission is.
            self.phases.step_from(RunPhase.WAITING_FOR_SLOT, RunPhase.DISPATCHED_TO_GATEWAY)
            self.phases.step(RunPhase.STARTING_ENGINE, event.type)
            if not self._is_watched and self._tasks is not None:
                self._is_watched = True
                self._tasks.start_soon(self._watch_silence)
        elif event.type == "engine_completed":
            self.phases.step(RunPhase.FINALIZING, event.type)
        self._relay.relay(event)

    def _note_place(self, event: Event) -> None:
        seq = event.meta.get("event_seq")
        if isinstance(seq, int):
            self._last_seq = seq
            if seq - self._noted_seq >= PROGRESS_EVENTS:
                self._noted_seq = seq
                self._parts.on_progress(self.run_id, seq)

    def _complete(self, event: Event, payload: RunCompleted) -> None:
        if self.completion is not None:
            return
        self.completion = payload
        # The phase goes first: run_completed is the last thing a watcher sees of a run.
        self.phases.end(ok=payload.completed.ok, error=payload.completed.error)
        self._relay.relay(event)
        self._stop()

    # Driving

    async def _drive(self) -> None:
        if self._former is not None and not await self._found():
            return
        while True:
            if self._former is None:
                receipt = await self._submit()
                if receipt is None:
                    return
                self._epoch = receipt.stream_epoch
                self._parts.on_receipt(self.run_id, receipt)
            self.phases.step_from(RunPhase.WAITING_FOR_SLOT, RunPhase.DISPATCHED_TO_GATEWAY)
            if await self._follow() != "again":
                return
            self._former = None

    async def _submit(self) -> SubmitReceipt | None:
        """Hand the command over, for as long as it takes; None when the run ended without it."""
        self.submission = await self._parts.prepare(self.submission)
        for attempt in count():
            if self._abort_reason is not None:
                break
            try:
                self._submitted = True
                return await self._engine.submit_execution(self.submission.command)
            except (InvalidCommand, RunIdConflict) as exc:
                self._synthesize({"code": exc.code, "message": str(exc)})
                return None
            except ExecutionRejected as exc:
                self._submitted = False
                log.info("run.submit_refused", run_id=self.run_id, reason=exc.reason)
            except Exception as exc:  # whatever it is, the message is not lost by it
                log.warning("run.submit_failed", run_id=self.run_id, error=str(exc))
            await self._wait(attempt)
        self._synthesize(self._abort_reason or "user_requested")
        return None

    async def _wait(self, attempt: int) -> None:
        """Back off before the next try; an abort ends the wait."""
        delay_ms = capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS)
        await first_of(partial(self._clock.sleep, delay_ms), self._abort_asked.wait)

    async def _found(self) -> bool:
        """Look for a run of a former process; False when it has its end by now."""
        fate = await self._fate(RESTART, grace_ms=0)
        if fate == "again":
            self._former = None
        return fate is not None

    async def _follow(self) -> Fate | None:
        """Notice a run that the gateway lost, or whose end did not come over the bus."""
        while True:
            shared = await self._there.shares_bus()
            there = self._there
            reason = await (there.checked_for() if shared else there.streamed(self._last_seq))
            fate = await self._fate(
                reason, grace_ms=CRASH_GRACE_MS if reason == NODE_LOST else LOSS_GRACE_MS
            )
            if fate != "lives":
                return fate

    async def _fate(self, reason: str, *, grace_ms: int) -> Literal["lives", "again"] | None:
        """What became of a run that is not heard of; None when it has its end by now.

        As long as nobody can tell, the run waits.
        """
        if grace_ms:
            await self._clock.sleep(grace_ms)
        for attempt in count():
            try:
                snapshot = await self._engine.get_run(self.run_id)
                if snapshot is not None and snapshot.terminal is not None:
                    self._end_from(snapshot)
                    return None
                if snapshot is not None:
                    self._epoch = snapshot.stream_epoch
                    return "lives"
                return await self._unknown(reason)
            except Exception as exc:  # away, or its store is: ask again
                log.info("run.fate_unknown", run_id=self.run_id, error=str(exc))
            await self._wait(attempt)
        raise AssertionError("count() is endless")

    async def _unknown(self, reason: str) -> Literal["again"] | None:
        """The gateway does not know the run: the store tells whether it may have had effects."""
        record = await self._parts.records.get(self.run_id)
        if record is not None and record.summary is not None:
            self._end(completed_of(record))
            return None
        if reason not in (RESTART, NODE_LOST) and not await self._there.restarted(self._epoch):
            self._synthesize({"code": GATEWAY_RUN_DOWN, "detail": reason})
        elif record is not None:
            self._synthesize(RUN_LOST)
        elif self._abort_reason is not None:
            self._synthesize(self._abort_reason)
        else:
            return "again"
        return None

    # Ending

    def _end_from(self, snapshot: RunSnapshot) -> None:
        """A real completion that was only found by asking."""
        assert snapshot.terminal is not None
        self._end(RunCompleted(completed=snapshot.terminal, duration_ms=snapshot.duration_ms))

    def _synthesize(self, error: ErrorValue) -> None:
        """End the run here, because no completion will come."""
        self._end(synthetic_end(self.submission, error))

    def _end(self, payload: RunCompleted) -> None:
        """Publish an end that did not come from the gateway's events, unless the run has one."""
        if self.completion is None:
            event = self._relay.own_event("run_completed", payload)
            self._relay.announce(event)
            self._complete(event, payload)

    async def _watch_abort(self, reason: str) -> None:
        await self._there.cancel(reason)
        for attempt in count():
            await self._clock.sleep(capped_backoff(ABORT_GRACE_MS, attempt, RETRY_MAX_MS))
            if not await self._there.lives():
                self._synthesize(reason)
                return
            # The submission may have arrived after the cancellation did.
            await self._there.cancel(reason)

    async def _watch_silence(self) -> None:
        """End a run that its gateway does not know, or that was not heard of for too long, from its
        start on."""
        self._watchdog.touch()
        if await self._there.unbound():
            self._synthesize("gateway_run_missing_after_start")
            return
        silent_ms = await self._watchdog.silence()
        log.warning("run.idle_timeout", run_id=self.run_id, idle_ms=silent_ms)
        await self._there.cancel("run_watchdog_timeout")
        self._synthesize({"code": "run_idle_watchdog_timeout", "detail": {"ms": silent_ms}})
