"""Everything of a run after its admission: its place, its process, its record, its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Final

import anyio

from lemon_core.bridges import SteerMode, SubmitReceipt
from lemon_core.events import Completion, RunCompleted
from lemon_core.logs import get_logger
from lemon_core.resume import ConversationKey
from lemon_core.util import capped_backoff
from lemon_router.admission import Admission, AdmissionState
from lemon_router.coordinator import Coordinator
from lemon_router.hooks import StartFailed, StartRefused, Taken
from lemon_router.ledger import Ledger
from lemon_router.phases import ABORT_REASONS
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission
from lemon_router.run_ends import is_loss
from lemon_router.run_process import Former, ProcessParts, RunProcess
from lemon_router.steering import Steering
from lemon_router.surroundings import Surroundings

log = get_logger("lemon_router.lifecycle")

START_RETRY_BASE_MS: Final = 250
START_RETRY_MAX_MS: Final = 5_000
NOT_READY: Final = "router_not_ready"
FULL: Final = "run_capacity_reached"
EXPIRED: Final = "context_expired"
CRASHED: Final = "run_process_terminated"


class Lifecycle:
    """The runs of one router that have not ended; performs what its coordinator asks for."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._clock, self._tasks, self._engine = around.clock, around.tasks, around.engine
        self.ledger = Ledger(around.admissions, around.clock, self._spawn)
        self.coordinator = Coordinator(hooks=self, clock=around.clock, rules=around.rules)
        self._steering = Steering(
            around.engine,
            around.clock,
            ack_timeout_ms=around.steer_ack_timeout_ms,
            told=lambda mode, result: around.emit(
                "lemon.router.steer", {"mode": mode, "result": result}
            ),
        )
        self._parts = ProcessParts(
            engine=around.engine,
            records=around.records,
            clock=around.clock,
            prepare=self._prepare,
            on_receipt=self._on_receipt,
            on_progress=self._on_progress,
            idle_timeout_ms=around.idle_timeout_ms,
        )
        self._processes: dict[str, RunProcess] = {}
        self._formers: dict[str, Former] = {}
        self._retrying: set[ConversationKey] = set()
        self._followed: set[str] = set()
        self._writing = 0
        self.refusing = False
        self._completed: tuple[str, int] = ("", 0)
        self._changed = anyio.Event()

    # Taking

    @property
    def full(self) -> bool:
        """True when no further run may become active now."""
        limit = self._around.run_process_limit
        return limit is not None and self.coordinator.active_count >= limit

    def take(self, submission: Submission) -> Taken:
        """Give an admitted run its place; a refusal leaves nothing of it here."""
        self._follow(submission.run_id)
        taken = self.coordinator.submit(submission, self._relay(submission))
        if taken.reason is not None:
            self._unfollow(submission.run_id)
            self._around.journal.close_run(submission.run_id)
        return taken

    def restore(
        self,
        submission: Submission,
        former: Former | None = None,
        offered_to: str | None = None,
    ) -> None:
        """Give a run of a former process its place; `coordinator.release_held` starts what can."""
        self._follow(submission.run_id)
        if former is not None:
            self._formers[submission.run_id] = former
        self.coordinator.restore(
            submission, self._relay(submission), offered_to, first=former is not None
        )

    def state_of(self, record: Admission) -> AdmissionState:
        """The record's state as it is now: of a live run more is known than what is stored."""
        work = self.coordinator.find(record.run_id)
        if work is None or record.state != "accepted":
            return record.state
        if work.process is not None:
            return "started"
        return "queued" if work.relay.phases.queued else "accepted"

    def process(self, run_id: str) -> RunProcess | None:
        """The process of an active run."""
        return self._processes.get(run_id)

    def let_go(self, run_id: str) -> None:
        """Another router cares for a run by now; it goes on, but not here."""
        process = self._processes.get(run_id)
        if process is not None:
            process.detach()
            return
        self.coordinator.abandon(run_id)
        self._gone(run_id)

    def _gone(self, run_id: str) -> None:
        """Nothing of the run is here any more; who watches it is told that."""
        self.ledger.forget(run_id)
        self._unfollow(run_id)
        self._around.journal.close_run(run_id)

    # What the coordinator asks for

    def own(self, session_key: str) -> bool:
        """See `Hooks.own`."""
        return self._around.ownership.claim(session_key)

    def start(self, submission: Submission, relay: RunRelay) -> RunProcess:
        """See `Hooks.start`."""
        run_id = submission.run_id
        former = self._formers.pop(run_id, None)
        if self.refusing:
            raise StartRefused(NOT_READY)
        if former is None and self.full:
            raise StartRefused(FULL)
        context = submission.command.execution_context
        if context is not None and context.validity.expired(self._clock.now_ms()):
            raise StartFailed(EXPIRED)
        process = RunProcess(submission, relay, self._parts, former)
        self._processes[run_id] = process
        self._tasks.start_soon(self._run_process, process)
        return process

    def steer(self, active_run_id: str, mode: SteerMode, submission: Submission) -> None:
        """See `Hooks.steer`."""
        # Not waited for at the end: what has no answer then is settled when the run ends.
        self._tasks.start_soon(self._offer, active_run_id, mode, submission)

    async def _offer(self, active_run_id: str, mode: SteerMode, submission: Submission) -> None:
        # Known to the store first: after a crash nobody could tell whether the run took it.
        await self.ledger.advance(submission.run_id, surely=True, offered_to=active_run_id)
        accepted = await self._steering.offer(active_run_id, mode, submission)
        if accepted is not None:
            self.coordinator.steer_answered(submission.run_id, accepted=accepted)

    def dropped(self, submission: Submission, completed: RunCompleted) -> None:
        """See `Hooks.dropped`."""
        run_id = submission.run_id
        self._unfollow(run_id)
        self.ledger.let_go(run_id, partial(self._write_end, run_id, completed.completed))

    def absorbed(self, submission: Submission, by: str, mode: str) -> None:
        """See `Hooks.absorbed`."""
        self._unfollow(submission.run_id)
        self.ledger.absorb(submission.run_id, by, mode)

    def requeued(self, submission: Submission) -> None:
        """See `Hooks.requeued`."""
        self._spawn(partial(self.ledger.advance, submission.run_id, offered_to=None))

    def held(self, conversation: ConversationKey) -> None:
        """See `Hooks.held`."""
        if conversation not in self._retrying and not self.refusing:
            self._retrying.add(conversation)
            self._tasks.start_soon(self._retry_start, conversation)

    async def _retry_start(self, conversation: ConversationKey) -> None:
        try:
            for attempt in count():
                delay = capped_backoff(START_RETRY_BASE_MS, attempt, START_RETRY_MAX_MS)
                await self._clock.sleep(delay)
                self.coordinator.start_again(conversation)
                if self.refusing or not self.coordinator.is_held(conversation):
                    return
        finally:
            self._retrying.discard(conversation)

    # Processes

    async def _run_process(self, process: RunProcess) -> None:
        run_id = process.run_id
        completed, applied = await self._lived(process)
        self._processes.pop(run_id, None)
        if completed is None:
            if not self.refusing:
                self.coordinator.run_ended(run_id)
                self._gone(run_id)
            self._notify()
            return
        self._writing += 1
        self._count_completion()
        try:
            await self.tell_end(process.submission, completed, process.streamed_text)
            self._around.ownership.run_over(process.submission.session_key)
            self.coordinator.run_ended(run_id, applied)
            await self._write_end(run_id, completed.completed)
        finally:
            self._writing -= 1
            self.ledger.forget(run_id)
            self._around.forget_run(run_id)
            self._unfollow(run_id)
            self._notify()

    async def _lived(self, process: RunProcess) -> tuple[RunCompleted | None, tuple[str, ...]]:
        """How the run ended, and which messages it took; None when it was let go."""
        run_id = process.run_id
        try:
            completed = await process.run()
            offered = self.coordinator.offered_to(run_id)
            if completed is None or not offered:
                return completed, ()
            if is_loss(completed.completed.error):
                # It may have taken them, and nobody is left to tell: never executed again.
                return completed, offered
            return completed, await self._steering.taken_by(run_id)
        except Exception:  # one broken run must not take the others along; its end is published
            log.exception("run_process.crashed", run_id=run_id)
            process.crashed()
            await self._engine.cancel_by_run_id(run_id, CRASHED)
            return process.completion, ()

    async def tell_end(
        self, submission: Submission, completed: RunCompleted, streamed_text: bool
    ) -> None:
        """Do what follows an end; a failure there changes nothing about the end."""
        try:
            await self._around.after_end(submission, completed, streamed_text)
        except Exception:  # what follows an end must not keep the conversation from going on
            log.exception("run.after_end_failed", run_id=submission.run_id)

    async def _prepare(self, submission: Submission) -> Submission:
        """The submission as it is sent: bound late, and alone on its token.

        What it absorbed is known to the store by then.
        """
        await self.ledger.settled(submission.run_id)
        bound = await self._around.late_resume(submission)
        token = bound.command.resume
        while token is not None and not self.coordinator.claim_token(bound.run_id, token):
            await self._change()
        return bound

    def _on_receipt(self, run_id: str, receipt: SubmitReceipt) -> None:
        """Remember where the run lives; the write waits for nobody."""
        self._tasks.start_soon(self._store_receipt, run_id, receipt)

    async def _store_receipt(self, run_id: str, receipt: SubmitReceipt) -> None:
        await self.ledger.advance(
            run_id, state="submitted", node_id=receipt.node_id, stream_epoch=receipt.stream_epoch
        )

    def _on_progress(self, run_id: str, seq: int) -> None:
        self._spawn(partial(self.ledger.advance, run_id, last_event_seq=seq))

    async def _write_end(self, run_id: str, end: Completion) -> None:
        await self.ledger.settled(run_id)
        state = end_state(end.ok, end.error)
        # Whoever asks for the outcome of a submission is told from this record.
        await self.ledger.advance(run_id, surely=True, state=state, ok=end.ok, error=end.error)

    # Going down, and waiting

    async def refuse(self) -> None:
        """Start nothing more. Runs that no gateway of this process ends are let go."""
        self.refusing = True
        try:
            together = await self._engine.shares_bus()
        except Exception:  # a gateway that cannot be asked does not end its runs for us
            together = False
        for process in list(self._processes.values()):
            if not together or not process.submitted:
                process.detach()

    async def drained(self) -> None:
        """Return when every run process has ended and its end is stored."""
        while self._processes or self._writing:
            await self._change()

    async def session_idle(self, session_key: str) -> None:
        """Return when every run of the session has its end, and the store knows it."""
        while any(record.session_key == session_key for record in self.ledger.lives()):
            await self._change()

    async def _change(self) -> None:
        await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` behind; `drained` waits for it."""
        self._writing += 1
        self._tasks.start_soon(self._work, work)

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:  # one piece of work must not take the router along
            log.exception("router.work_failed")
        finally:
            self._writing -= 1
            self._notify()

    # Small things

    def _relay(self, submission: Submission) -> RunRelay:
        around = self._around
        return RunRelay(submission, bus=around.bus, journal=around.journal, clock=around.clock)

    def _follow(self, run_id: str) -> None:
        self._followed.add(run_id)
        self._around.followers.subscribe_run(run_id)

    def _unfollow(self, run_id: str) -> None:
        if run_id in self._followed:
            self._followed.discard(run_id)
            self._around.followers.unsubscribe_run(run_id)

    def completed_today(self) -> int:
        """How many runs ended since midnight UTC."""
        day, ended = self._completed
        return ended if day == self._today() else 0

    def _count_completion(self) -> None:
        self._completed = (self._today(), self.completed_today() + 1)

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).date().isoformat()


def end_state(ok: bool, error: object) -> AdmissionState:
    """The state of a record whose run ended like this."""
    if ok:
        return "completed"
    aborted = isinstance(error, str) and error in ABORT_REASONS
    return "aborted" if aborted else "failed"
