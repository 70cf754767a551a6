"""The line of one conversation: where a message is put, what leaves it, and who starts."""

from __future__ import annotations

from dataclasses import replace

from lemon_core.runs import QueueMode
from lemon_router.followups import mergeable, merged
from lemon_router.queue_state import Absorbed, Dropped, QueueRules, QueueState, Start, Step
from lemon_router.requests import Submission


def place(
    state: QueueState, submission: Submission, mode: QueueMode, now_ms: int, rules: QueueRules
) -> Step:
    """The line with `submission` in it; nothing starts."""
    if mode == "interrupt":
        return Step(replace(state, waiting=(submission, *state.waiting)))
    if mode == "followup":
        return _follow_up(state, submission, now_ms, rules)
    if state.active is not None and submission.from_user:
        return Step(replace(state, waiting=before_goals(state.waiting, submission)))
    return Step(replace(state, waiting=(*state.waiting, submission)))


def _follow_up(state: QueueState, submission: Submission, now_ms: int, rules: QueueRules) -> Step:
    last_at = state.last_followup_at_ms
    noted = replace(state, last_followup_at_ms=now_ms)
    last = state.waiting[-1] if state.waiting else None
    soon = last_at is not None and now_ms - last_at <= rules.debounce_ms
    if last is None or not soon or not mergeable(last, submission):
        return Step(replace(noted, waiting=(*state.waiting, submission)))
    both = merged(last, submission)
    return Step(
        replace(noted, waiting=(*state.waiting[:-1], both)),
        (Absorbed(last, submission.run_id, "followup"),),
    )


def before_goals(waiting: tuple[Submission, ...], submission: Submission) -> tuple[Submission, ...]:
    """A person does not wait behind the steps of a goal, but behind all else."""
    place = next((i for i, s in enumerate(waiting) if s.continues_goal), len(waiting))
    return (*waiting[:place], submission, *waiting[place:])


def by_age(
    waiting: tuple[Submission, ...], submission: Submission, *, goals_last: bool
) -> tuple[Submission, ...]:
    """The line with a message of a former process in it, by the order of admission."""

    def later(other: Submission) -> bool:
        if goals_last and other.continues_goal:
            return True
        return other.order > submission.order and other.queue_mode != "interrupt"

    place = next((i for i, other in enumerate(waiting) if later(other)), len(waiting))
    return (*waiting[:place], submission, *waiting[place:])


def drop(state: QueueState, doomed: tuple[Submission, ...], reason: str) -> Step:
    if not doomed:
        return Step(state)
    gone = {s.run_id for s in doomed}
    kept = tuple(s for s in state.waiting if s.run_id not in gone)
    steers = tuple(p for p in state.steers if p.submission.run_id not in gone)
    held = state.held and bool(kept)
    left = replace(state, waiting=kept, steers=steers, held=held)
    return Step(left, (Dropped(doomed, reason),))


def not_active(state: QueueState) -> tuple[Submission, ...]:
    return (*state.waiting, *(pending.submission for pending in state.steers))


def then_start(step: Step) -> Step:
    started = start_next(step.state)
    return Step(started.state, (*step.effects, *started.effects))


def start_next(state: QueueState) -> Step:
    if state.active is not None or not state.waiting or state.held:
        return Step(state)
    head, *rest = state.waiting
    return Step(replace(state, active=head, waiting=tuple(rest)), (Start(head),))
