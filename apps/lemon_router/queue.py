"""What one conversation has to do: a pure reducer over its active run and its waiting ones.

Every function takes the state and returns the next state with the effects that the coordinator has
to perform, in order. At most one run of a conversation is active; the others wait in line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lemon_router.requests import Submission


@dataclass(frozen=True, slots=True)
class QueueState:
    """The run that is going on, and those that wait for it, first in front."""

    active: Submission | None = None
    waiting: tuple[Submission, ...] = ()

    @property
    def idle(self) -> bool:
        """True when the conversation has nothing to do."""
        return self.active is None and not self.waiting


@dataclass(frozen=True, slots=True)
class Start:
    """Begin this run now."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class CancelActive:
    """Ask the running one to end."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """These will never start; each needs its synthetic end."""

    submissions: tuple[Submission, ...]
    reason: str


Effect = Start | CancelActive | Dropped


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one event: the next state, and what has to be done about it."""

    state: QueueState
    effects: tuple[Effect, ...] = field(default=())


def submit(state: QueueState, submission: Submission) -> Step:
    """Mode `collect`: behind everything that waits, started at once when nothing is active."""
    queued = replace(state, waiting=(*state.waiting, submission))
    return _start_next(queued)


def run_ended(state: QueueState, run_id: str) -> Step:
    """The active run is over; the next in line starts. Late news of other runs change nothing."""
    if state.active is None or state.active.run_id != run_id:
        return Step(state)
    return _start_next(replace(state, active=None))


def abort_run(state: QueueState, run_id: str, reason: str) -> Step:
    """End one run, wherever it stands."""
    if state.active is not None and state.active.run_id == run_id:
        return Step(state, (CancelActive(run_id, reason),))
    return _drop(state, tuple(s for s in state.waiting if s.run_id == run_id), reason)


def abort_session(state: QueueState, session_key: str, reason: str) -> Step:
    """End everything of one session; other sessions of a shared conversation are left alone."""
    doomed = tuple(s for s in state.waiting if s.session_key == session_key)
    step = _drop(state, doomed, reason)
    active = state.active
    if active is None or active.session_key != session_key:
        return step
    return Step(step.state, (*step.effects, CancelActive(active.run_id, reason)))


def _drop(state: QueueState, doomed: tuple[Submission, ...], reason: str) -> Step:
    if not doomed:
        return Step(state)
    kept = tuple(s for s in state.waiting if s not in doomed)
    return Step(replace(state, waiting=kept), (Dropped(doomed, reason),))


def _start_next(state: QueueState) -> Step:
    if state.active is not None or not state.waiting:
        return Step(state)
    head, *rest = state.waiting
    return Step(QueueState(active=head, waiting=tuple(rest)), (Start(head),))
