"""Performs what the queue decides: starts run processes, ends dropped runs, keeps who is busy.

One object for all conversations of a router. Its methods are plain functions: state changes at
once, and the work they cause runs in the router's task group.

Two conversations may meet: a session whose messages name different tokens, and two sessions that
resume one token. The claims of a session and of a token are therefore held across conversations: a
head that cannot have both waits (`held`), the oldest first. So does a head whose session another
router has (`ownership.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lemon_core.clock import Clock
from lemon_core.events import Completion, RunAbsorbed, RunCompleted
from lemon_core.phases import RunPhase
from lemon_core.resume import ConversationKey, ResumeToken
from lemon_router import queue
from lemon_router.hooks import Hooks, StartFailed, StartRefused, Taken, Work
from lemon_router.queue_state import (
    Absorbed,
    CancelActive,
    DispatchSteer,
    Dropped,
    Effect,
    QueueRules,
    QueueState,
    Refused,
    Requeued,
    Start,
    Step,
)
from lemon_router.relay import RunRelay
from lemon_router.requests import Disposition, Submission
from lemon_router.works import Works

SESSION_BUSY: Final = "session_busy"
SESSION_ELSEWHERE: Final = "session_elsewhere"


class Coordinator:
    """Every conversation that has something to do."""

    def __init__(self, *, hooks: Hooks, clock: Clock, rules: QueueRules | None = None) -> None:
        self._hooks, self._clock = hooks, clock
        self._rules = QueueRules() if rules is None else rules
        self._conversations: dict[ConversationKey, QueueState] = {}
        self._works = Works()
        self._held: dict[ConversationKey, None] = {}
        self._claims = self._works.claims
        # Why the start of an arriving message was refused, while it is being submitted.
        self._refusal: str | None = None
        self._arriving: str | None = None

    # Arriving

    def submit(self, submission: Submission, relay: RunRelay) -> Taken:
        """Queue an admitted run; it starts at once when its conversation is idle.

        A message that finds no room is refused: nothing of it stays, and nobody is told but the
        caller.
        """
        key = self.conversation_of(submission)
        state = self._conversations.get(key, QueueState())
        self._works.add(Work(submission, relay, key))
        self._arriving, self._refusal = submission.run_id, None
        step = queue.submit(state, submission, now_ms=self._clock.now_ms(), rules=self._rules)
        try:
            self._apply(key, step)
        finally:
            self._arriving = None
        refusal = self._refused_with()
        if refusal is not None:
            self._works.remove(submission.run_id)
            return Taken(None, reason=refusal)
        return self._taken(key, submission.run_id, step)

    def _refused_with(self) -> str | None:
        return self._refusal

    def _taken(self, key: ConversationKey, run_id: str, step: Step) -> Taken:
        work = self._works.find(run_id)
        if work is None or work.process is not None:
            # Not here any more: dropped by the queue's rules, after it was accepted.
            return Taken("started" if work is not None else "queued")
        state = self._conversations[key]
        active = None if state.active is None else state.active.run_id
        merged = tuple(e.submission.run_id for e in step.effects if isinstance(e, Absorbed))
        places = {s.run_id: place for place, s in enumerate(state.waiting, start=1)}
        if run_id not in places:
            return Taken("steering", active_run_id=active)
        work.relay.phases.step(RunPhase.QUEUED_IN_SESSION, "coordinator")
        word: Disposition = "merged" if merged else "queued"
        return Taken(word, places[run_id], active, merged)

    def conversation_of(self, submission: Submission) -> ConversationKey:
        """Work of a busy session stays together, or the first stored token would split it.

        Only another token that the caller names leads elsewhere.
        """
        explicit = submission.resume_is_explicit
        token = submission.command.resume
        for work in self._works.of_session(submission.session_key):
            if not explicit or token == self._claims.token_of(work.submission):
                return work.conversation
        return submission.conversation_key

    def restore(
        self,
        submission: Submission,
        relay: RunRelay,
        offered_to: str | None = None,
        *,
        first: bool = False,
    ) -> None:
        """Give a run of a former process its place; `release_held` starts what can.

        One that was offered to a run which is active again is settled when that ends; one that may
        be going on comes `first`.
        """
        active = None if offered_to is None else self._works.find(offered_to)
        key = self.conversation_of(submission) if active is None else active.conversation
        self._works.add(Work(submission, relay, key))
        state = self._conversations.get(key, QueueState())
        if offered_to is None:
            step = queue.restore(state, submission, first=first)
        else:
            step = queue.restore_offered(state, submission, offered_to)
        self._apply(key, step)
        if any(s.run_id == submission.run_id for s in step.state.waiting):
            relay.phases.step(RunPhase.QUEUED_IN_SESSION, "coordinator")

    def would_start(self, submission: Submission) -> bool:
        """True when the message would begin at once, with nothing of its conversation before it."""
        return self.conversation_of(submission) not in self._conversations

    # What happens to runs

    def run_ended(self, run_id: str, applied: Iterable[str] = ()) -> None:
        """A run process is done; the next of its conversation starts.

        `applied` names the messages offered to the run that it has taken.
        """
        work = self._works.find(run_id)
        if work is None:
            return
        self._works.remove(run_id)
        step = queue.run_ended(
            self._conversations[work.conversation],
            run_id,
            applied=frozenset(applied),
            now_ms=self._clock.now_ms(),
            rules=self._rules,
        )
        self._apply(work.conversation, step)
        self.release_held()

    def steer_answered(self, run_id: str, *, accepted: bool) -> None:
        """The active run took the offered message `run_id`, or not; late answers change nothing."""
        work = self._works.find(run_id)
        if work is None:
            return
        state = self._conversations[work.conversation]
        if accepted:
            self._apply(work.conversation, queue.steer_taken(state, run_id))
        else:
            now = self._clock.now_ms()
            step = queue.steer_refused(state, run_id, now_ms=now, rules=self._rules)
            self._apply(work.conversation, step)

    def abandon(self, run_id: str) -> None:
        """Forget a run that waits, without an end: another router cares for it now."""
        work = self._works.find(run_id)
        if work is not None:
            self._works.remove(run_id)
            state = self._conversations[work.conversation]
            self._apply(work.conversation, queue.abandon(state, run_id))

    def start_again(self, conversation: ConversationKey) -> None:
        """Try the start of a held head once more."""
        state = self._conversations.get(conversation)
        if state is not None and state.held:
            self._apply(conversation, queue.start_again(state))

    def abort_run(self, run_id: str, reason: str) -> bool:
        """End one run; False when it is not here."""
        work = self._works.find(run_id)
        if work is None:
            return False
        state = self._conversations[work.conversation]
        self._apply(work.conversation, queue.abort_run(state, run_id, reason))
        return True

    def abort_session(self, session_key: str, reason: str) -> None:
        """End everything of one session."""
        for key in {w.conversation for w in self._works.of_session(session_key)}:
            step = queue.abort_session(self._conversations[key], session_key, reason)
            self._apply(key, step)

    def claim_token(self, run_id: str, token: ResumeToken) -> bool:
        """Have the active run hold `token` as well; False while another one does."""
        return self._claims.take_token(run_id, token)

    # Asking

    def active_run(self, session_key: str) -> str | None:
        """The run of this session that is going on."""
        return self._claims.active_run(session_key)

    def active(self) -> list[Submission]:
        """The submissions of all active runs."""
        return self._works.active()

    @property
    def active_count(self) -> int:
        """How many runs are active."""
        return self._works.active_count

    def queued_count(self, session_key: str | None = None) -> int:
        """How many runs wait or are being offered, of one session or of all."""
        if session_key is None:
            return len(self._works) - self._works.active_count
        return sum(1 for work in self._works.of_session(session_key) if work.process is None)

    def is_held(self, conversation: ConversationKey) -> bool:
        """True while the head of the conversation finds no room."""
        return conversation in self._held

    def find(self, run_id: str) -> Work | None:
        """A run that has not ended yet."""
        return self._works.find(run_id)

    def offered_to(self, run_id: str) -> tuple[str, ...]:
        """The messages that are offered to this run without an answer."""
        work = self._works.find(run_id)
        if work is None:
            return ()
        steers = self._conversations[work.conversation].steers
        return tuple(steer.submission.run_id for steer in steers)

    def conversations(self) -> int:
        """How many conversations have something to do."""
        return len(self._conversations)

    # Performing

    def _apply(self, key: ConversationKey, step: Step) -> None:
        self._keep(key, step.state)
        for effect in step.effects:
            self._perform(key, effect)

    def _keep(self, key: ConversationKey, state: QueueState) -> None:
        if state.idle:
            self._conversations.pop(key, None)
        else:
            self._conversations[key] = state
        if state.held and state.waiting:
            self._held[key] = None
        else:
            self._held.pop(key, None)

    def _perform(self, key: ConversationKey, effect: Effect) -> None:
        match effect:
            case Start(submission):
                self._begin(key, submission)
            case CancelActive(run_id, reason):
                process = self._works[run_id].process
                if process is not None:
                    process.abort(reason)
            case DispatchSteer(active_run_id, mode, submission):
                self._works.renew(submission)
                self._hooks.steer(active_run_id, mode, submission)
            case Dropped(submissions, reason):
                for submission in submissions:
                    self._drop(submission, reason)
            case Absorbed(submission, by, mode):
                self._absorb(submission, by, mode)
            case Requeued(submission):
                relay = self._works[submission.run_id].relay
                relay.phases.step(RunPhase.QUEUED_IN_SESSION, "coordinator")
                self._hooks.requeued(submission)
            case Refused(_, reason):
                self._refusal = reason

    def _begin(self, key: ConversationKey, submission: Submission) -> None:
        run_id = submission.run_id
        work = self._works.renew(submission)
        if not self._claims.free(submission) or self._older_waits(key, submission):
            self._hold(key, submission, SESSION_BUSY)
            return
        if not self._hooks.own(submission.session_key):
            self._hold(key, submission, SESSION_ELSEWHERE)
            return
        try:
            process = self._hooks.start(submission, work.relay)
        except StartFailed as exc:
            self._apply(key, queue.start_failed(self._conversations[key], run_id, exc.reason))
            return
        except StartRefused as exc:
            self._hold(key, submission, exc.reason)
            return
        self._works.started(submission, process)
        work.relay.phases.step(RunPhase.WAITING_FOR_SLOT, "coordinator")

    def _hold(self, key: ConversationKey, submission: Submission, reason: str) -> None:
        run_id = submission.run_id
        held = queue.start_refused(self._conversations[key], run_id)
        self._keep(key, held.state)
        if reason in (SESSION_BUSY, SESSION_ELSEWHERE):
            # What it waits for is told: a run of this router ends, or the session comes here.
            return
        if run_id == self._arriving:
            self._refusal = reason
            self._apply(key, queue.withdraw(held.state, run_id))
        else:
            self._hooks.held(key)

    def _older_waits(self, key: ConversationKey, submission: Submission) -> bool:
        """True when another conversation's head has waited longer for what this run needs."""
        heads = (self._conversations[other].waiting[0] for other in self._held if other != key)
        return any(
            head.order < submission.order and self._claims.compete(head, submission)
            for head in heads
        )

    def release_held(self) -> None:
        """Try the start of every held head, the oldest first."""
        heads = [(self._conversations[key].waiting[0].order, key) for key in self._held]
        for _, key in sorted(heads, key=lambda pair: pair[0]):
            self.start_again(key)

    def _drop(self, submission: Submission, reason: str) -> None:
        """No accepted run is left without an end."""
        relay = self._works.remove(submission.run_id).relay
        relay.phases.step(RunPhase.ABORTED, "coordinator")
        completed = RunCompleted(
            completed=Completion(
                ok=False,
                answer="",
                error=reason,
                run_id=submission.run_id,
                session_key=submission.session_key,
                meta={"synthetic": True},
            )
        )
        relay.publish("run_completed", completed)
        self._hooks.dropped(submission, completed)

    def _absorb(self, submission: Submission, by: str, mode: str) -> None:
        run_id = submission.run_id
        relay = self._works.remove(run_id).relay
        relay.phases.step(RunPhase.ABORTED, "coordinator")
        payload = RunAbsorbed(run_id=run_id, absorbed_by=by, mode=mode)
        relay.publish("run_absorbed", payload)
        self._hooks.absorbed(submission, by, mode)
