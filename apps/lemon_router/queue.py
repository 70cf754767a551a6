"""What one conversation has to do: a pure reducer over its active run and its waiting ones.

Every function takes the state and returns the next state with the effects that the coordinator has
to perform, in order. At most one run of a conversation is active; the others wait in line, or are
being offered to the active run (`steers`). What an arriving message does:

| mode            | nothing is active | a run is active                                         |
|-----------------|-------------------|---------------------------------------------------------|
| `collect`       | last, start       | last; a person's goes before the first step of a goal   |
| `followup`      | last, start       | joins the last queued follow-up if it may, else last    |
| `steer`         | as `followup`     | offered to the run; refused: as `followup`              |
| `steer_backlog` | as `collect`      | offered to the run; refused: as `collect`               |
| `redirect`      | as `followup`     | offered to the run; refused: as `followup`              |
| `interrupt`     | first, start      | first, and the active run is cancelled                  |
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import cast

from lemon_core.bridges import SteerMode
from lemon_core.runs import QueueMode
from lemon_router.followups import is_promoted, steerable, with_receipt
from lemon_router.queue_line import (
    by_age,
    drop,
    not_active,
    place,
    start_next,
    then_start,
)
from lemon_router.queue_state import (
    DEFAULT_RULES,
    FALLBACK,
    INTERRUPTED,
    QUEUE_FULL,
    Absorbed,
    CancelActive,
    DispatchSteer,
    Dropped,
    PendingSteer,
    QueueRules,
    QueueState,
    Refused,
    Requeued,
    Step,
)
from lemon_router.requests import Submission

# Arriving


def submit(
    state: QueueState, submission: Submission, *, now_ms: int, rules: QueueRules = DEFAULT_RULES
) -> Step:
    """A message arrives; the table above says what it does."""
    mode, active = submission.queue_mode, state.active
    if active is not None and mode == "followup" and is_promoted(submission):
        mode = "steer"
    fallback = FALLBACK.get(mode)
    if fallback is None:
        told = with_receipt(submission, "queued", mode, now_ms=now_ms)
        return _queue(state, told, mode, now_ms, rules)
    if active is None:
        told = with_receipt(submission, "queued", fallback, now_ms=now_ms)
        return _queue(state, told.in_mode(fallback), fallback, now_ms, rules)
    if not steerable(active, submission):
        told = _unsteered(submission, fallback, now_ms)
        return _queue(state, told, fallback, now_ms, rules)
    # Every mode with a fallback is one that the gateway knows.
    return _offer(state, active, submission, cast(SteerMode, mode), fallback, now_ms)


def _offer(
    state: QueueState,
    active: Submission,
    submission: Submission,
    mode: SteerMode,
    fallback: QueueMode,
    now_ms: int,
) -> Step:
    told = with_receipt(
        submission,
        "dispatched_to_active",
        mode,
        now_ms=now_ms,
        fallback_mode=fallback,
        active_run_id=active.run_id,
    )
    pending = PendingSteer(active.run_id, told, mode, fallback)
    offered = replace(state, steers=(*state.steers, pending))
    return Step(offered, (DispatchSteer(active.run_id, mode, told),))


def _queue(
    state: QueueState, submission: Submission, mode: QueueMode, now_ms: int, rules: QueueRules
) -> Step:
    """Put an arriving message in line, within the rules; the head starts if nothing is active."""
    placed = place(state, submission, mode, now_ms, rules)
    if mode == "interrupt" and state.active is not None:
        cancel = CancelActive(state.active.run_id, INTERRUPTED)
        return Step(placed.state, (*placed.effects, cancel))
    if mode != "interrupt" and _over(placed.state, state, rules):
        return _shed(state, placed, submission, rules)
    return then_start(placed)


def _over(placed: QueueState, before: QueueState, rules: QueueRules) -> bool:
    """True when one more message waits than may; one that starts at once does not wait."""
    if rules.cap is None or len(placed.waiting) <= len(before.waiting):
        return False
    starts = placed.active is None and not placed.held
    return len(placed.waiting) - starts > rules.cap


def _shed(before: QueueState, placed: Step, arriving: Submission, rules: QueueRules) -> Step:
    match rules.drop:
        case "reject":
            return Step(before, (Refused(arriving, QUEUE_FULL),))
        case "newest":
            return Step(before, (Dropped((arriving,), QUEUE_FULL),))
        case "oldest":
            others = [s for s in placed.state.waiting if s.run_id != arriving.run_id]
            return drop(placed.state, (min(others, key=lambda s: s.order),), QUEUE_FULL)


def restore(state: QueueState, submission: Submission, *, first: bool = False) -> Step:
    """A message of a former process gets its place back; nothing starts before `start_again`.

    Steers wait as their fallback says, an interrupting message is in front and cancels nothing, and
    nothing is joined or dropped. What may be going on already comes `first`; a message that another
    router left goes before those that came after it.
    """
    mode = FALLBACK.get(submission.queue_mode, submission.queue_mode)
    told = submission.in_mode(mode)
    if first or mode == "interrupt":
        waiting = (told, *state.waiting)
    else:
        waiting = by_age(state.waiting, told, goals_last=mode != "followup" and told.from_user)
    return Step(replace(state, waiting=waiting, held=state.active is None))


def restore_offered(state: QueueState, submission: Submission, active_run_id: str) -> Step:
    """A message that a former process offered to a run which is active again.

    It is not offered once more: the end of the run tells whether that has taken it.
    """
    mode = "steer" if is_promoted(submission) else submission.queue_mode
    if state.active is None or state.active.run_id != active_run_id or mode not in FALLBACK:
        return restore(state, submission)
    # Every mode with a fallback is one that the gateway knows.
    pending = PendingSteer(active_run_id, submission, cast(SteerMode, mode), FALLBACK[mode])
    return Step(replace(state, steers=(*state.steers, pending)))


# Starting


def start_refused(state: QueueState, run_id: str) -> Step:
    """There is no room for the run that was to start: it stays the head, until `start_again`."""
    if state.active is None or state.active.run_id != run_id:
        return Step(state)
    waiting = (state.active, *state.waiting)
    return Step(replace(state, active=None, waiting=waiting, held=True))


def start_again(state: QueueState) -> Step:
    """There may be room again."""
    return start_next(replace(state, held=False))


def start_failed(state: QueueState, run_id: str, reason: str) -> Step:
    """The run that was to start never can: it is dropped, and the next one starts."""
    active = state.active
    if active is None or active.run_id != run_id:
        return Step(state)
    step = start_next(replace(state, active=None))
    return Step(step.state, (Dropped((active,), reason), *step.effects))


def withdraw(state: QueueState, run_id: str) -> Step:
    """Take back an arriving message that found no room; its sender is told so."""
    kept = tuple(s for s in state.waiting if s.run_id != run_id)
    return Step(replace(state, waiting=kept, held=state.held and bool(kept)))


def abandon(state: QueueState, run_id: str) -> Step:
    """Another router cares for a waiting or offered message; nobody here is told."""
    return withdraw(_without_steer(state, run_id), run_id)


# Ending


def run_ended(
    state: QueueState,
    run_id: str,
    *,
    applied: AbstractSet[str] = frozenset(),
    now_ms: int = 0,
    rules: QueueRules = DEFAULT_RULES,
) -> Step:
    """The active run is over; the next in line starts. Late news of other runs change nothing.

    `applied` names the offered messages that the run has taken; the others wait in line.
    """
    if state.active is None or state.active.run_id != run_id:
        return Step(state)
    pending = state.steers
    step = Step(replace(state, active=None, steers=()))
    for steer in pending:
        if steer.submission.run_id in applied:
            absorbed = Absorbed(steer.submission, run_id, steer.mode)
            step = Step(step.state, (*step.effects, absorbed))
        else:
            fallen = _fall_back(step.state, steer, now_ms, rules)
            step = Step(fallen.state, (*step.effects, *fallen.effects))
    return then_start(step)


def steer_taken(state: QueueState, run_id: str) -> Step:
    """The active run took the offered message `run_id`; it never runs on its own."""
    pending = _pending(state, run_id)
    if pending is None:
        return Step(state)
    taken = Absorbed(pending.submission, pending.active_run_id, pending.mode)
    return Step(_without_steer(state, run_id), (taken,))


def steer_refused(
    state: QueueState, run_id: str, *, now_ms: int, rules: QueueRules = DEFAULT_RULES
) -> Step:
    """The active run did not take the offered message; it waits in line in its fallback mode."""
    pending = _pending(state, run_id)
    if pending is None:
        return Step(state)
    return then_start(_fall_back(_without_steer(state, run_id), pending, now_ms, rules))


def _fall_back(state: QueueState, steer: PendingSteer, now_ms: int, rules: QueueRules) -> Step:
    # Not subject to the cap: the message was let in when it came.
    told = _unsteered(steer.submission, steer.fallback, now_ms)
    placed = place(state, told, steer.fallback, now_ms, rules)
    requeued = Requeued(told, steer.mode)
    return Step(placed.state, (*placed.effects, requeued))


def _unsteered(submission: Submission, fallback: QueueMode, now_ms: int) -> Submission:
    told = with_receipt(
        submission, "fallback_queued", fallback, now_ms=now_ms, fallback_mode=fallback
    )
    return told.in_mode(fallback)


# Aborting


def abort_run(state: QueueState, run_id: str, reason: str) -> Step:
    """End one run, wherever it stands."""
    if state.active is not None and state.active.run_id == run_id:
        return Step(state, (CancelActive(run_id, reason),))
    return drop(state, tuple(s for s in not_active(state) if s.run_id == run_id), reason)


def abort_session(state: QueueState, session_key: str, reason: str) -> Step:
    """End everything of one session; other sessions of a shared conversation are left alone."""
    doomed = tuple(s for s in not_active(state) if s.session_key == session_key)
    step = drop(state, doomed, reason)
    active = state.active
    if active is None or active.session_key != session_key:
        return step
    return Step(step.state, (*step.effects, CancelActive(active.run_id, reason)))


def _pending(state: QueueState, run_id: str) -> PendingSteer | None:
    return next((p for p in state.steers if p.submission.run_id == run_id), None)


def _without_steer(state: QueueState, run_id: str) -> QueueState:
    kept = tuple(p for p in state.steers if p.submission.run_id != run_id)
    return replace(state, steers=kept)
