"""The router: every message it accepts ends as something, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import anyio

from lemon_core import ids
from lemon_core.bridges import (
    KeepAlive,
    SteerMode,
    SteerOutcome,
    SubmitResult,
)
from lemon_core.errors import LemonError
from lemon_core.execution_context import ExecutionContext
from lemon_core.journal import Journal
from lemon_core.logs import get_logger
from lemon_core.runs import RunRequest
from lemon_core.store import StoreError
from lemon_router.admission import Admission, context_of
from lemon_router.builder import Builder
from lemon_router.endings import Recorder
from lemon_router.inbound import Inbound
from lemon_router.lifecycle import Lifecycle
from lemon_router.others import OtherRouters
from lemon_router.ownership import End
from lemon_router.policy import Caller
from lemon_router.recovery import Recovery
from lemon_router.requests import Submission
from lemon_router.run_process import Records
from lemon_router.submitting import HERE, Submitting
from lemon_router.surroundings import Surroundings

if TYPE_CHECKING:
    # Its models take milliseconds to make, and a process without channels has no use for them.
    from lemon_core.messages import InboundMessage

log = get_logger("lemon_router.router")

SWEEP_INTERVAL_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The authority under which a session goes on by itself, and the MCP origins granted to it."""

    context: ExecutionContext
    mcp_origins: tuple[str, ...] = ()


class Router:
    """Admission, conversations and run processes of one node; implements core's `RouterPort`."""

    def __init__(
        self,
        *,
        builder: Builder,
        around: Surroundings,
        inbound: Inbound,
        record: Recorder | None = None,
    ) -> None:
        self._builder, self._around, self._inbound = builder, around, inbound
        self._clock, self._engine = around.clock, around.engine
        self._lifecycle = Lifecycle(around)
        self._ledger, self._coordinator = self._lifecycle.ledger, self._lifecycle.coordinator
        self._submitting = Submitting(
            self._lifecycle, builder=builder, around=around, record=record
        )

        self._recovering, self._resume = anyio.Lock(), True
        self.others = OtherRouters(self._lifecycle, around, self._recover_again)

    # Submitting

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        """Take a message from a producer in this process."""
        return await self.submit(request)

    async def handle_inbound(self, message: InboundMessage, caller: Caller = HERE) -> SubmitResult:
        """Take a channel's message; whatever is wrong with it is an answer, nothing is raised."""
        try:
            request = await self._inbound.request(message)
        except LemonError as exc:
            return SubmitResult("rejected", None, exc.code, detail={"message": str(exc)})
        self._around.emit("lemon.channels.inbound", {"channel_id": message.channel_id})
        return await self.submit(request, caller)

    async def submit(
        self, request: RunRequest | Mapping[str, object], caller: Caller = HERE
    ) -> SubmitResult:
        """Take a message; see `Submitting.submit`."""
        return await self._submitting.submit(request, caller)

    async def try_again(self, submission: Submission) -> None:
        """Admit a run that the router itself sends once more; a known id is left alone."""
        await self._submitting.try_again(submission)

    # Aborting and steering

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        """Drop what the session has queued and cancel its active run, in whichever router."""
        self._coordinator.abort_session(session_key, reason)
        self._around.ownership.end_elsewhere(End(reason, session_key=session_key))

    async def abort_session_of(self, session_key: str, reason: str, *, owner: str | None) -> None:
        """As `abort_session`, but with `owner` only the runs that this caller submitted."""
        if owner is None:
            await self.abort_session(session_key, reason)
            return
        alone = self._around.alive is None
        for record in self._ledger.lives() if alone else await self.records():
            own = record.session_key == session_key and record.owner == owner
            if own and not record.terminal:
                await self.abort_run(record.run_id, reason)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        """Drop or cancel one run, in whichever router; unknown ids do nothing."""
        if not self._coordinator.abort_run(run_id, reason):
            self._around.ownership.end_elsewhere(End(reason, run_id=run_id))

    async def keep_run_alive(self, run_id: str, decision: KeepAlive | str) -> None:
        """Answer about a silent run: `cancel` ends it, `continue` lets it be silent once more."""
        process = self._lifecycle.process(run_id)
        if decision == "cancel":
            await self.abort_run(run_id, "user_requested")
        elif process is not None:
            process.keep_alive()

    async def steer_run(
        self, run_id: str, text: str, mode: SteerMode, submission_run_id: str
    ) -> SteerOutcome:
        """Give an active run more input."""
        work = self._coordinator.find(run_id)
        if work is None or work.process is None:
            return SteerOutcome(submission_run_id, mode, False, "run_not_active")
        return await self._engine.steer(run_id, submission_run_id, text, mode)

    # Asking

    async def session_busy(self, session_key: str) -> bool:
        """True while the session has an active run."""
        return self._coordinator.active_run(session_key) is not None

    async def active_run(self, session_key: str) -> str | None:
        """The session's active run."""
        return self._coordinator.active_run(session_key)

    async def list_active_sessions(self) -> list[dict[str, str]]:
        """`{session_key, run_id}` of every active run."""
        return [
            {"session_key": s.session_key, "run_id": s.run_id} for s in self._coordinator.active()
        ]

    async def counts(self) -> dict[str, int]:
        """Active and queued runs now, completed ones since midnight UTC."""
        return {
            "active": self._coordinator.active_count,
            "queued": self._coordinator.queued_count(),
            "completed_today": self._lifecycle.completed_today(),
        }

    async def admission(self, run_id: str) -> str | None:
        """The admission state of a run."""
        record = await self.record(run_id)
        return None if record is None else record.state

    async def record(self, run_id: str) -> Admission | None:
        """The admission record of a run, its state as it is now. Raises `StoreError`."""
        record = await self._ledger.load(run_id)
        return None if record is None else self._shown(record)

    async def records(self) -> list[Admission]:
        """All admission records, oldest first; live ones as they are now."""
        return [self._shown(record) for record in await self._ledger.load_all()]

    def _shown(self, record: Admission) -> Admission:
        state = self._lifecycle.state_of(record)
        return record if state == record.state else replace(record, state=state)

    def owner(self, run_id: str) -> str | None:
        """The caller that submitted a run, while it is not over or its journal is kept."""
        return self._ledger.owner(run_id)

    def queued_count(self, session_key: str) -> int:
        """How many runs of the session wait."""
        return self._coordinator.queued_count(session_key)

    async def session_idle(self, session_key: str) -> None:
        """Return when every run of the session has its end, and the store knows it; in other
        routers too, for then the session is this one's."""
        await self._lifecycle.session_idle(session_key)
        await self._around.ownership.take(session_key)

    def live_records(self) -> list[Admission]:
        """The records of runs that have not ended."""
        return [self._shown(record) for record in self._ledger.lives()]

    async def is_over(self, run_id: str) -> bool:
        """True when the run has its end. Raises `StoreError`."""
        record = await self._ledger.load(run_id)
        return record is not None and record.terminal

    async def session_context(self, session_key: str) -> SessionContext:
        """What a follow-up of the session may do that no run causes: the authority of its newest
        run, or without one that of `system`. Raises `Rejected` and `StoreError`."""
        records = await self._ledger.load_all()
        # A session that was reset begins anew.
        of_session = [r for r in records if r.session_key == session_key and r.context]
        if of_session:
            return SessionContext(context_of(of_session[-1]))
        now = self._clock.now_ms()
        return SessionContext(
            await self._builder.system_context(session_key, f"system_{ids.new_uuid()}", now)
        )

    def forget_owner(self, run_id: str) -> None:
        """The run's journal is gone; only its record answers from now on."""
        self._ledger.forget_owner(run_id)

    @property
    def journal(self) -> Journal:
        """What watchers are served from."""
        return self._around.journal

    async def engine_available(self) -> bool:
        """True when the gateway answers."""
        return await self._engine.available()

    # Life

    @property
    def router_id(self) -> str:
        """Which router process this is."""
        return self._around.journal.epoch

    async def recover(self, runs: Records, *, resume: bool = True) -> int:
        """Go on with what a former process left open, before new work is taken; the number of runs.

        On a shared store the runs of routers that live are theirs. Without `resume` only what had
        begun gets its end, and the rest waits for another process. Raises `StoreError`.
        """
        around, self._resume = self._around, resume
        # One after the other: whoever returns may rely on all of it being in its place.
        async with self._recovering:
            recovery = Recovery(
                self._lifecycle, around, runs, router_id=self.router_id, resume=resume
            )
            return await recovery.run()

    async def _recover_again(self) -> int:
        return await self.recover(self._around.records, resume=self._resume)

    async def serve_sweep(self, retention_ms: int) -> None:
        """Delete old terminal records every hour, until cancelled."""
        admissions = self._around.admissions
        while True:
            await self._clock.sleep(SWEEP_INTERVAL_MS)
            try:
                await admissions.sweep(now_ms=self._clock.now_ms(), retention_ms=retention_ms)
            except StoreError as exc:
                log.warning("admissions.sweep_failed", error=str(exc))

    async def refuse(self) -> None:
        """Take no new work; what is under way goes on."""
        await self._lifecycle.refuse()

    async def drained(self) -> None:
        """Return when every run process has ended."""
        await self._lifecycle.drained()
