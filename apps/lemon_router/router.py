"""The router: every message it accepts ends as something, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import anyio
from anyio.abc import TaskGroup
from pydantic import ValidationError

from lemon_core import ids
from lemon_core.bridges import (
    EngineRuntime,
    SteerMode,
    SteerOutcome,
    SubmitReceipt,
    SubmitResult,
    SubmitStatus,
)
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.events import RunCompleted
from lemon_core.journal import Journal
from lemon_core.logs import get_logger
from lemon_core.runs import RunRequest
from lemon_core.store import RunStore, StoreError, StoreUnavailable
from lemon_core.tool_policy import InvalidToolPolicy
from lemon_router.admission import (
    Admission,
    AdmissionState,
    AdmissionStore,
    new_admission,
    request_digest,
)
from lemon_router.builder import Builder
from lemon_router.coordinator import Coordinator
from lemon_router.errors import Rejected
from lemon_router.phases import ABORT_REASONS
from lemon_router.policy import Caller
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission
from lemon_router.run_process import RunProcess

log = get_logger("lemon_router.router")

SHUTTING_DOWN: Final = "shutting_down"
SWEEP_INTERVAL_MS: Final = 3_600_000
HERE: Final = Caller()
"""The caller of in-process submissions: whoever runs this process."""


class Router:
    """Admission, conversations and run processes of one node; implements core's `RouterPort`.

    `tasks` owns the run processes: they live as long as the component.
    """

    def __init__(
        self,
        *,
        builder: Builder,
        admissions: AdmissionStore,
        engine: EngineRuntime,
        journal: Journal,
        bus: Bus,
        clock: Clock,
        tasks: TaskGroup,
        run_process_limit: int | None,
        on_submit: Callable[[Submission], None] = lambda submission: None,
    ) -> None:
        self._builder = builder
        self._admissions = admissions
        self._engine = engine
        self._journal = journal
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._limit = run_process_limit
        self._on_submit = on_submit
        self._records: dict[str, Admission] = {}
        # Who may watch a run; kept as long as its journal.
        self._owners: dict[str, str] = {}
        # One write of a record at a time: each is a compare-and-swap from the one before.
        self._writes: dict[str, anyio.Lock] = {}
        self._coordinator = Coordinator(start=self._start, on_dropped=self._dropped)
        self._refusing = False
        self._order = 0
        self._completed: tuple[str, int] = ("", 0)
        self._idle = anyio.Event()

    # Submitting

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        """Take a message from a producer in this process."""
        return await self.submit(request)

    async def submit(
        self, request: RunRequest | Mapping[str, object], caller: Caller = HERE
    ) -> SubmitResult:
        """Take a message; the answer is definite, or `outcome_unknown` if the store cannot tell."""
        try:
            normal = RunRequest.normalize(request)
        except (ValidationError, InvalidToolPolicy) as exc:
            return SubmitResult("rejected", None, "invalid_request", detail={"message": str(exc)})
        run_id = normal.run_id or ids.run_id()
        try:
            return await self._submit(normal, run_id, caller)
        except Rejected as exc:
            if exc.reason == SHUTTING_DOWN:
                return SubmitResult("unavailable", run_id, str(exc))
            return SubmitResult("rejected", run_id, exc.reason, detail=exc.detail)
        except StoreError as exc:
            unknown = isinstance(exc, StoreUnavailable) and exc.outcome_unknown
            status: SubmitStatus = "outcome_unknown" if unknown else "unavailable"
            return SubmitResult(status, run_id, f"{exc.code}: {exc}")

    async def _submit(self, request: RunRequest, run_id: str, caller: Caller) -> SubmitResult:
        live = self._records.get(run_id)
        if live is not None:
            return _known(live, request)
        try:
            admitted = await self._admit(request, run_id, caller)
        except Rejected:
            # A known run is answered as such, whatever would be said of it now.
            stored = await self._admissions.get(run_id)
            if stored is None:
                raise
            return _known(stored, request)
        if isinstance(admitted, Admission):
            return _known(admitted, request)
        submission = admitted
        relay = RunRelay(submission, bus=self._bus, journal=self._journal, clock=self._clock)
        self._coordinator.submit(submission, relay)
        self._on_submit(submission)
        return SubmitResult("accepted", run_id)

    async def _admit(
        self, request: RunRequest, run_id: str, caller: Caller
    ) -> Submission | Admission:
        """The submission, with its record stored; or the record that has the run id already."""
        if self._refusing:
            raise Rejected(SHUTTING_DOWN, "the router is shutting down")
        if not caller.may_use_origin(request.origin):
            raise Rejected("origin_not_allowed", f"origin {request.origin!r} is not allowed here")
        if not request.prompt.strip() and not request.images:
            raise Rejected("empty_prompt", "the prompt is empty")
        if self._limit is not None and len(self._coordinator.active()) >= self._limit:
            raise Rejected("run_capacity_reached", f"{self._limit} runs are active already")
        now = self._clock.now_ms()
        submission = await self._builder.build(request, run_id, caller, now)
        self._order = max(self._order + 1, now * 1_000)
        admission = new_admission(
            request, submission, owner=caller.id, order=self._order, now_ms=now
        )
        # The put is the look-up: a fresh id, which is nearly every one, costs no read.
        if not await self._admissions.put_new(admission):
            return await self._admissions.get(run_id) or admission
        self._records[run_id] = admission
        self._owners[run_id] = caller.id
        return submission

    # Aborting and steering

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        """Drop what the session has queued and cancel its active run."""
        self._coordinator.abort_session(session_key, reason)

    async def abort_session_of(self, session_key: str, reason: str, *, owner: str | None) -> None:
        """As `abort_session`, but with `owner` only the runs that this caller submitted."""
        if owner is None:
            await self.abort_session(session_key, reason)
            return
        for record in list(self._records.values()):
            if record.session_key == session_key and record.owner == owner:
                await self.abort_run(record.run_id, reason)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        """Drop or cancel one run; unknown ids do nothing."""
        self._coordinator.abort_run(run_id, reason)

    async def keep_run_alive(self, run_id: str, decision: str) -> None:
        """Answer about a silent run: `cancel` ends it, `continue` leaves it alone."""
        if decision == "cancel":
            await self.abort_run(run_id, "user_requested")

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
        day, count = self._completed
        return {
            "active": len(self._coordinator.active()),
            "queued": self._coordinator.queued_count(),
            "completed_today": count if day == self._today() else 0,
        }

    async def admission(self, run_id: str) -> str | None:
        """The admission state of a run."""
        record = await self.record(run_id)
        return None if record is None else record.state

    async def record(self, run_id: str) -> Admission | None:
        """The admission record of a run."""
        return self._records.get(run_id) or await self._admissions.get(run_id)

    async def records(self) -> list[Admission]:
        """All admission records, oldest first; live ones as they are now."""
        stored = await self._admissions.all()
        return [self._records.get(record.run_id, record) for record in stored]

    def owner(self, run_id: str) -> str | None:
        """The caller that submitted a run, while it is not over or its journal is kept."""
        return self._owners.get(run_id)

    def queued_count(self, session_key: str) -> int:
        """How many runs of the session wait."""
        return self._coordinator.queued_count(session_key)

    def forget_owner(self, run_id: str) -> None:
        """The run's journal is gone; only its record answers from now on."""
        self._owners.pop(run_id, None)

    @property
    def journal(self) -> Journal:
        """What watchers are served from."""
        return self._journal

    async def engine_available(self) -> bool:
        """True when the gateway answers."""
        return await self._engine.available()

    # Life

    async def close_former(self, runs: RunStore) -> int:
        """End what a former process left open, before new work is taken; the number of runs ended.

        A run that has its summary ended as that says. Every other one ends as `run_lost`: side
        effects may have happened, so nothing is executed again.
        """
        count = 0
        for record in await self._admissions.all():
            if not record.terminal:
                stored = await runs.get(record.run_id)
                await self._close_former(record, None if stored is None else stored.summary)
                count += 1
        return count

    async def _close_former(self, record: Admission, summary: Mapping[str, object] | None) -> None:
        ended = None if summary is None else summary.get("completed")
        completed = ended if isinstance(ended, Mapping) else {"ok": False, "error": "run_lost"}
        ok, error = completed.get("ok") is True, completed.get("error")
        await self._admissions.advance(
            record,
            state=_end_state(ok, error),
            ok=ok,
            error=error,
            updated_at_ms=self._clock.now_ms(),
        )

    async def serve_sweep(self, retention_ms: int) -> None:
        """Delete old terminal records every hour, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_INTERVAL_MS)
            try:
                await self._admissions.sweep(now_ms=self._clock.now_ms(), retention_ms=retention_ms)
            except StoreError as exc:
                log.warning("admissions.sweep_failed", error=str(exc))

    async def refuse(self) -> None:
        """Take no new work; what is under way goes on."""
        self._refusing = True

    async def drained(self) -> None:
        """Return when every run process has ended."""
        while self._coordinator.active():
            self._idle = anyio.Event()
            await self._idle.wait()

    def _start(self, submission: Submission, relay: RunRelay) -> RunProcess:
        process = RunProcess(
            submission,
            engine=self._engine,
            relay=relay,
            clock=self._clock,
            bind_resume=self._bind_resume,
            on_receipt=lambda receipt: self._on_receipt(submission.run_id, receipt),
        )
        self._tasks.start_soon(self._run_process, process)
        return process

    async def _run_process(self, process: RunProcess) -> None:
        run_id = process.run_id
        try:
            completed = await process.run()
            self._count_completion()
            await self._close_record(run_id, completed)
        except Exception:  # one broken run must not take the others along; its end is published
            log.exception("run_process.crashed", run_id=run_id)
            process.crashed()
        finally:
            self._forget(run_id)
            self._coordinator.run_ended(run_id)
            self._idle.set()

    async def _bind_resume(self, submission: Submission) -> Submission:
        """A message queued during the first run of a session continues that run's conversation."""
        command = submission.command
        if submission.resume_is_explicit or not self._builder.auto_resumes(command.meta):
            return submission
        try:
            token = await self._builder.late_resume(submission.session_key)
        except LemonError:
            return submission
        return submission if token is None else submission.resumed(token)

    def _on_receipt(self, run_id: str, receipt: SubmitReceipt) -> None:
        """Remember where the run lives; the write waits for nobody."""
        self._tasks.start_soon(self._store_receipt, run_id, receipt)

    async def _store_receipt(self, run_id: str, receipt: SubmitReceipt) -> None:
        await self._advance(
            run_id, state="submitted", node_id=receipt.node_id, stream_epoch=receipt.stream_epoch
        )

    async def _close_record(self, run_id: str, completed: RunCompleted) -> None:
        end = completed.completed
        state = _end_state(end.ok, end.error)
        await self._advance(run_id, state=state, ok=end.ok, error=end.error)

    async def _advance(self, run_id: str, **changes: object) -> None:
        async with self._writes.setdefault(run_id, anyio.Lock()):
            record = self._records.get(run_id)
            if record is None or record.terminal:
                return
            try:
                changed = await self._admissions.advance(
                    record, updated_at_ms=self._clock.now_ms(), **changes
                )
            except StoreError as exc:
                log.error("admission.write_failed", run_id=run_id, error=str(exc))
                return
            if changed is not None:
                self._records[run_id] = changed

    def _forget(self, run_id: str) -> None:
        self._records.pop(run_id, None)
        self._writes.pop(run_id, None)

    def _dropped(self, submission: Submission, completed: RunCompleted) -> None:
        self._tasks.start_soon(self._close_dropped, submission.run_id, completed)

    async def _close_dropped(self, run_id: str, completed: RunCompleted) -> None:
        await self._close_record(run_id, completed)
        self._forget(run_id)

    def _count_completion(self) -> None:
        day, count = self._completed
        today = self._today()
        self._completed = (today, count + 1 if day == today else 1)

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).date().isoformat()


def _end_state(ok: bool, error: object) -> AdmissionState:
    if ok:
        return "completed"
    aborted = isinstance(error, str) and error in ABORT_REASONS
    return "aborted" if aborted else "failed"


def _known(record: Admission, request: RunRequest) -> SubmitResult:
    """The answer to a run id that was taken before."""
    if record.digest != request_digest(request):
        raise Rejected("run_id_conflict", f"run id {record.run_id} belongs to a different request")
    return SubmitResult("accepted", record.run_id, duplicate=True)
