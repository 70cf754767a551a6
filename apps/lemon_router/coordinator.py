"""Performs what the queue decides: starts run processes, ends dropped runs, keeps who is busy.

One object for all conversations of a router. Its methods are plain functions: state changes at
once, and the work they cause runs in the router's task group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from lemon_core.events import Completion, RunCompleted
from lemon_core.phases import RunPhase
from lemon_core.resume import ConversationKey
from lemon_router import queue
from lemon_router.queue import CancelActive, Dropped, Effect, QueueState, Start, Step
from lemon_router.relay import RunRelay
from lemon_router.requests import Submission


class Process(Protocol):
    """The part of a run process that the coordinator needs."""

    def abort(self, reason: str) -> None:
        """Ask the run to end."""


@dataclass(frozen=True, slots=True)
class Work:
    """A run that has not ended: waiting, or driven by its process."""

    submission: Submission
    relay: RunRelay
    conversation: ConversationKey
    process: Process | None = None


class Coordinator:
    """Every conversation that has something to do.

    `start(submission, relay)` begins a run process and returns it; `on_dropped(submission, reason)`
    is told of runs that will never start, after their synthetic end was published.
    """

    def __init__(
        self,
        *,
        start: Callable[[Submission, RunRelay], Process],
        on_dropped: Callable[[Submission, RunCompleted], None],
    ) -> None:
        self._start = start
        self._on_dropped = on_dropped
        self._conversations: dict[ConversationKey, QueueState] = {}
        self._works: dict[str, Work] = {}

    def submit(self, submission: Submission, relay: RunRelay) -> None:
        """Queue an admitted run; it starts at once when its conversation is idle."""
        key = self._affine_key(submission)
        state = self._conversations.get(key, QueueState())
        self._works[submission.run_id] = Work(submission, relay, key)
        waits = not state.idle
        if waits:
            relay.phases.step(RunPhase.QUEUED_IN_SESSION, "coordinator")
        self._apply(key, queue.submit(state, submission))

    def run_ended(self, run_id: str) -> None:
        """A run process is done; the next of its conversation starts."""
        work = self._works.pop(run_id, None)
        if work is not None:
            self._apply(
                work.conversation, queue.run_ended(self._conversations[work.conversation], run_id)
            )

    def abort_run(self, run_id: str, reason: str) -> bool:
        """End one run; False when it is not here."""
        work = self._works.get(run_id)
        if work is None:
            return False
        state = self._conversations[work.conversation]
        self._apply(work.conversation, queue.abort_run(state, run_id, reason))
        return True

    def abort_session(self, session_key: str, reason: str) -> None:
        """End everything of one session."""
        for key in {w.conversation for w in self._of_session(session_key)}:
            step = queue.abort_session(self._conversations[key], session_key, reason)
            self._apply(key, step)

    def active_run(self, session_key: str) -> str | None:
        """The run of this session that is going on."""
        for work in self._of_session(session_key):
            if work.process is not None:
                return work.submission.run_id
        return None

    def active(self) -> list[Submission]:
        """The submissions of all active runs."""
        return [work.submission for work in self._works.values() if work.process is not None]

    def queued_count(self, session_key: str | None = None) -> int:
        """How many runs wait, of one session or of all."""
        return sum(
            1
            for work in self._works.values()
            if work.process is None and session_key in (None, work.submission.session_key)
        )

    def find(self, run_id: str) -> Work | None:
        """A run that has not ended yet."""
        return self._works.get(run_id)

    def _of_session(self, session_key: str) -> Iterable[Work]:
        return [w for w in self._works.values() if w.submission.session_key == session_key]

    def _affine_key(self, submission: Submission) -> ConversationKey:
        """Work of a busy session stays together, or the first stored token would split it."""
        for work in self._of_session(submission.session_key):
            return work.conversation
        return submission.conversation_key

    def _apply(self, key: ConversationKey, step: Step) -> None:
        if step.state.idle:
            self._conversations.pop(key, None)
        else:
            self._conversations[key] = step.state
        for effect in step.effects:
            self._perform(key, effect)

    def _perform(self, key: ConversationKey, effect: Effect) -> None:
        match effect:
            case Start(submission):
                work = self._works[submission.run_id]
                work.relay.phases.step(RunPhase.WAITING_FOR_SLOT, "coordinator")
                process = self._start(submission, work.relay)
                self._works[submission.run_id] = Work(submission, work.relay, key, process)
            case CancelActive(run_id, reason):
                process_of = self._works[run_id].process
                if process_of is not None:
                    process_of.abort(reason)
            case Dropped(submissions, reason):
                for submission in submissions:
                    self._drop(submission, reason)

    def _drop(self, submission: Submission, reason: str) -> None:
        """No accepted run is left without an end."""
        relay = self._works.pop(submission.run_id).relay
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
        self._on_dropped(submission, completed)
