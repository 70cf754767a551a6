"""An `EngineRuntime` that tests drive by hand: it publishes on the bus what a gateway would."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio

from lemon_core.bridges import (
    ExecutionRejected,
    HealthReport,
    RunNotFound,
    RunSnapshot,
    SteerMode,
    SteerOutcome,
    StreamItem,
    StreamLost,
    SubmitReceipt,
)
from lemon_core.bus import Bus, run_topic
from lemon_core.events import Completion, Delta, Event, RunCompleted, RunStarted
from lemon_core.ids import now_ms
from lemon_core.resume import ResumeToken
from lemon_core.runs import ExecutionCommand


@dataclass(eq=False)
class LiveRun:
    """A run as the scripted gateway knows it."""

    command: ExecutionCommand
    seq: int = 0
    ended: anyio.Event = field(default_factory=anyio.Event)
    lost: bool = False
    terminal: Completion | None = None
    applied: list[str] = field(default_factory=list)


class ScriptedEngine:
    """Takes commands; tests then call `start`, `delta`, `complete` or `lose`."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.runs: dict[str, LiveRun] = {}
        self.cancelled: list[tuple[str, str]] = []
        self.refuse_next: list[Exception] = []
        self.is_available = True
        self.on_this_bus = False
        self.epoch = "epoch"
        self.submitted: list[str] = []
        self.steers: list[tuple[str, str, str, str]] = []
        """Run, submission, text and mode of each steer that arrived."""
        self.takes_steers = True
        self.mute_steers = 0
        """So many steers get no answer; those that follow do."""
        self.lost_with = "gateway gone"
        self.is_away = False
        """Questions about runs cannot be answered."""
        self._submitted = anyio.Event()

    async def wait_submitted(self, run_id: str) -> LiveRun:
        """The run, once the router has submitted it."""
        with anyio.fail_after(5):
            while run_id not in self.runs:
                self._submitted = anyio.Event()
                await self._submitted.wait()
        return self.runs[run_id]

    def publish(self, run_id: str, event_type: str, payload: object) -> None:
        run = self.runs[run_id]
        run.seq += 1
        meta = {
            "run_id": run_id,
            "session_key": run.command.session_key,
            "event_seq": run.seq,
        }
        self.bus.publish(run_topic(run_id), Event(event_type, now_ms(), payload, meta))

    def start(self, run_id: str) -> None:
        self.publish(run_id, "run_started", RunStarted(run_id=run_id))

    def delta(self, run_id: str, seq: int, text: str) -> None:
        self.publish(run_id, "delta", Delta(run_id=run_id, seq=seq, text=text))

    def complete(
        self,
        run_id: str,
        *,
        ok: bool = True,
        answer: str = "done",
        error: str | None = None,
        resume: ResumeToken | None = None,
    ) -> None:
        done = Completion(ok=ok, answer=answer, error=error, run_id=run_id, resume=resume)
        self.publish(run_id, "engine_completed", done)
        self.end(run_id, done)

    def end(self, run_id: str, done: Completion, *, publish: bool = True) -> None:
        run = self.runs[run_id]
        run.terminal = done
        if publish:
            self.publish(run_id, "run_completed", RunCompleted(completed=done, duration_ms=1))
        run.ended.set()

    def lose(self, run_id: str) -> None:
        """Forget the run without an end, as a gateway that crashed."""
        run = self.runs.pop(run_id)
        run.lost = True
        run.ended.set()

    async def available(self) -> bool:
        return self.is_available

    async def health(self) -> HealthReport:
        return HealthReport("scripted", "now", stream_epoch=self.epoch)

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        if self.refuse_next:
            raise self.refuse_next.pop(0)
        if not self.is_available:
            raise ExecutionRejected("scripted")
        assert command.run_id not in self.runs, "submitted twice"
        self.runs[command.run_id] = LiveRun(command)
        self.submitted.append(command.run_id)
        self._submitted.set()
        return SubmitReceipt(command.run_id, "accepted", "node", self.epoch)

    async def shares_bus(self) -> bool:
        return self.on_this_bus

    async def cancel_by_run_id(self, run_id: str, reason: str = "user_requested") -> None:
        self.cancelled.append((run_id, reason))

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        if self.is_away:
            raise OSError("no route")
        self.steers.append((run_id, submission_run_id, text, mode))
        run = self.runs.get(run_id)
        if run is None or run.terminal is not None:
            return SteerOutcome(submission_run_id, mode, False, "run_not_active")
        if self.takes_steers and submission_run_id not in run.applied:
            run.applied.append(submission_run_id)
        if self.mute_steers:
            self.mute_steers -= 1
            await anyio.sleep_forever()
        reason = None if self.takes_steers else "unsupported"
        return SteerOutcome(submission_run_id, mode, self.takes_steers, reason)

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        return False

    async def get_run(self, run_id: str) -> RunSnapshot | None:
        if self.is_away:
            raise OSError("no route")
        run = self.runs.get(run_id)
        if run is None:
            return None
        return RunSnapshot(
            run_id=run_id,
            session_key=run.command.session_key,
            state="running" if run.terminal is None else "terminal",
            stream_epoch=self.epoch,
            last_event_seq=run.seq,
            applied_steers=tuple(run.applied),
            terminal=run.terminal,
        )

    async def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        run = self.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        await run.ended.wait()
        if run.lost:
            raise StreamLost(run_id, self.lost_with)
        snapshot = await self.get_run(run_id)
        assert snapshot is not None
        yield snapshot
