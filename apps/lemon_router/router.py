"""The router: every message it accepts ends as something, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from lemon_core import ids
from lemon_core.bridges import (
    KeepAlive,
    SteerMode,
    SteerOutcome,
    SubmitResult,
    SubmitStatus,
)
from lemon_core.errors import LemonError
from lemon_core.execution_context import ExecutionContext
from lemon_core.journal import Journal
from lemon_core.logs import get_logger
from lemon_core.runs import RunRequest
from lemon_core.store import StoreError, StoreUnavailable, UnsupportedValue
from lemon_core.store.keyed_lock import KeyedLock
from lemon_core.tool_policy import InvalidToolPolicy
from lemon_router.admission import Admission, context_of, new_admission, request_digest
from lemon_router.builder import Builder
from lemon_router.compaction import Marker
from lemon_router.coordinator import Taken
from lemon_router.endings import REASON_MAX_CHARS, Recorder
from lemon_router.errors import Rejected
from lemon_router.inbound import Inbound
from lemon_router.lifecycle import FULL, Lifecycle, Surroundings
from lemon_router.policy import Caller
from lemon_router.recovery import Recovery
from lemon_router.requests import Submission
from lemon_router.retry import RETRY_OF
from lemon_router.run_process import Records

if TYPE_CHECKING:
    # Its models take milliseconds to make, and a process without channels has no use for them.
    from lemon_core.messages import InboundMessage

log = get_logger("lemon_router.router")

SHUTTING_DOWN: Final = "shutting_down"
SWEEP_INTERVAL_MS: Final = 3_600_000
ADOPTION_INTERVAL_MS: Final = 15_000
RETRY_MS: Final = 1_000
RETRY_DIGEST: Final = "retry"
"""No request has this digest: a retry's id cannot be taken for a caller's."""
HERE: Final = Caller()
"""The caller of in-process submissions: whoever runs this process."""


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
        self._record = record
        # One run id is decided about at a time: a second sender waits for the first's answer.
        self._deciding = KeyedLock()

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
        """Take a message; the answer is definite, or `outcome_unknown` if the store cannot tell.

        The detail of an accepted one says what became of it: `disposition` is `started`, `queued`
        (with its `position` and the `active_run_id`), `merged` (with the ids it took over), or
        `steering`, whose outcome comes as an event.
        """
        try:
            normal = RunRequest.normalize(request)
        except InvalidToolPolicy as exc:
            detail = {"message": str(exc), "path": exc.path}
            return SubmitResult("rejected", None, "invalid_tool_policy", detail=detail)
        except ValidationError as exc:
            return SubmitResult("rejected", None, "invalid_request", detail={"message": str(exc)})
        run_id = normal.run_id or ids.run_id()
        try:
            async with self._deciding.hold(run_id):
                return await self._submit(normal, run_id, caller)
        except Rejected as exc:
            if exc.reason == SHUTTING_DOWN:
                return SubmitResult("unavailable", run_id, str(exc))
            reason = exc.reason[:REASON_MAX_CHARS]
            self._note("orchestration_failed", normal, run_id, {"reason": reason})
            return SubmitResult("rejected", run_id, exc.reason, detail=exc.detail)
        except UnsupportedValue as exc:
            detail = {"message": str(exc)}
            return SubmitResult("rejected", run_id, "invalid_request", detail=detail)
        except StoreError as exc:
            unknown = isinstance(exc, StoreUnavailable) and exc.outcome_unknown
            status: SubmitStatus = "outcome_unknown" if unknown else "unavailable"
            return SubmitResult(status, run_id, f"{exc.code}: {exc}")

    async def _submit(self, request: RunRequest, run_id: str, caller: Caller) -> SubmitResult:
        live = self._ledger.live(run_id)
        if live is not None:
            return _known(live, request)
        try:
            admitted = await self._admit(request, run_id, caller)
        except Rejected:
            # A known run is answered as such, whatever would be said of it now.
            stored = await self._ledger.load(run_id)
            if stored is None:
                raise
            return _known(stored, request)
        if isinstance(admitted, Admission):
            return _known(admitted, request)
        taken = self._lifecycle.take(admitted)
        if taken.reason is not None:
            await self._withdraw(run_id)
            raise Rejected(taken.reason, f"run {run_id} finds no room: {taken.reason}")
        told = _told(taken)
        mode = {"queue_mode": request.queue_mode, "disposition": told["disposition"]}
        self._note("orchestration_resolved", request, run_id, mode)
        facts: dict[str, object] = {
            "session_key": admitted.session_key,
            "origin": request.origin,
            "engine": "lemon",
        }
        self._around.emit("lemon.run.submit", facts)
        return SubmitResult("accepted", run_id, detail=told)

    def _note(
        self, event_type: str, request: RunRequest, run_id: str, facts: dict[str, object]
    ) -> None:
        if self._record is not None:
            self._record(
                event_type,
                {"origin": request.origin, **facts},
                run_id=run_id,
                session_key=request.session_key,
                agent_id=request.agent_id,
            )

    async def try_again(self, submission: Submission) -> None:
        """Admit a run that the router itself sends once more; a known id is left alone."""
        again = replace(submission, order=self._ledger.next_order())
        owner = self._ledger.owner(str(submission.meta.get(RETRY_OF))) or HERE.id
        now = self._clock.now_ms()
        admission = new_admission(
            RETRY_DIGEST, again, owner=owner, router=self.router_id, now_ms=now
        )
        if await self._ledger.put_new(admission):
            taken = self._lifecycle.take(again)
            if taken.reason is not None:
                await self._withdraw(again.run_id)

    async def _withdraw(self, run_id: str) -> None:
        try:
            await self._ledger.withdraw(run_id)
        except StoreError as exc:
            # The record may still be there, and would run after a restart.
            self._ledger.forget(run_id)
            raise StoreUnavailable(str(exc), outcome_unknown=True) from exc

    async def _admit(
        self, request: RunRequest, run_id: str, caller: Caller
    ) -> Submission | Admission:
        """The submission, with its record stored; or the record that has the run id already."""
        if self._lifecycle.refusing:
            raise Rejected(SHUTTING_DOWN, "the router is shutting down")
        if not caller.may_use_origin(request.origin):
            raise Rejected("origin_not_allowed", f"origin {request.origin!r} is not allowed here")
        if not request.prompt.strip() and not request.images:
            raise Rejected("empty_prompt", "the prompt is empty")
        now = self._clock.now_ms()
        built = await self._builder.build(request, run_id, caller, now)
        submission = replace(built, order=self._ledger.next_order())
        if self._lifecycle.full and self._coordinator.would_start(submission):
            raise Rejected(FULL, "as many runs are active as may be")
        digest = request_digest(request)
        admission = new_admission(
            digest, submission, owner=caller.id, router=self.router_id, now_ms=now
        )
        # The put is the look-up: a fresh id, which is nearly every one, costs no read.
        try:
            fresh = await self._ledger.put_new(admission)
        except StoreUnavailable as exc:
            if exc.outcome_unknown:
                self._around.tasks.start_soon(self._find_out, admission, submission)
            raise
        if not fresh:
            return await self._ledger.load(run_id) or admission
        if submission.consumes is not None:
            await self._consume(submission.consumes)
        return submission

    async def _consume(self, marker: Marker) -> None:
        try:
            await self._builder.compactions.consume(marker)
        except StoreError as exc:
            # The next message starts afresh once more: odd, but nothing is lost.
            log.warning("compaction.not_consumed", error=str(exc))

    async def _find_out(self, admission: Admission, submission: Submission) -> None:
        """A record whose write may have happened: if it did, its run is not left without an end."""
        while True:
            await self._clock.sleep(RETRY_MS)
            async with self._deciding.hold(admission.run_id):
                if self._ledger.live(admission.run_id) is not None:
                    return
                try:
                    stored = await self._ledger.load(admission.run_id)
                except StoreError:
                    continue
                if stored is None or stored.created_at_ms != admission.created_at_ms:
                    return
                self._ledger.keep(stored)
                if self._lifecycle.take(submission).reason is not None:
                    self._lifecycle.restore(submission)
                    self._coordinator.release_held()
                return

    # Aborting and steering

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        """Drop what the session has queued and cancel its active run."""
        self._coordinator.abort_session(session_key, reason)

    async def abort_session_of(self, session_key: str, reason: str, *, owner: str | None) -> None:
        """As `abort_session`, but with `owner` only the runs that this caller submitted."""
        if owner is None:
            await self.abort_session(session_key, reason)
            return
        for record in self._ledger.lives():
            if record.session_key == session_key and record.owner == owner:
                await self.abort_run(record.run_id, reason)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        """Drop or cancel one run; unknown ids do nothing."""
        self._coordinator.abort_run(run_id, reason)

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
        """Return when every run of the session has its end, and the store knows it."""
        await self._lifecycle.session_idle(session_key)

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
        around = self._around
        recovery = Recovery(self._lifecycle, around, runs, router_id=self.router_id, resume=resume)
        return await recovery.run()

    async def serve_adoption(self, runs: Records) -> None:
        """On a shared store, go on with the runs of routers that have died, until cancelled."""
        while self._around.alive is not None:
            await self._clock.sleep(ADOPTION_INTERVAL_MS)
            try:
                if not self._lifecycle.refusing:
                    await self.recover(runs)
            except StoreError as exc:
                log.warning("admissions.adoption_failed", error=str(exc))

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


def _known(record: Admission, request: RunRequest) -> SubmitResult:
    """The answer to a run id that was taken before."""
    if record.digest != request_digest(request):
        raise Rejected("run_id_conflict", f"run id {record.run_id} belongs to a different request")
    return SubmitResult("accepted", record.run_id, duplicate=True)


def _told(taken: Taken) -> dict[str, object]:
    """What became of a message, as its sender is told."""
    told: dict[str, object] = {"disposition": taken.disposition}
    if taken.position:
        told["position"] = taken.position
    if taken.active_run_id is not None:
        told["active_run_id"] = taken.active_run_id
    if taken.merged:
        told["merged"] = list(taken.merged)
    return told
