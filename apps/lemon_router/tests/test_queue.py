"""The queue reducer, cell by cell (specification lemon_router 4.1 and 4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from lemon_core.runs import Image, QueueMode
from lemon_router import queue
from lemon_router.queue_state import (
    FALLBACK,
    Absorbed,
    CancelActive,
    DispatchSteer,
    Dropped,
    DropRule,
    PendingSteer,
    QueueRules,
    QueueState,
    Refused,
    Requeued,
    Start,
    Step,
)
from lemon_router.requests import Submission
from lemon_router.tests.submissions import submission

ACTIVE = submission("1")
WAITS = submission("2")
GOAL = submission("3", meta={"goal_continuation": True})
OTHERS = submission("4", session_key="agent:b:main")
IMAGE = Image(data="aGk=", mime_type="image/png")
STEERS = ("steer", "steer_backlog", "redirect")
BUSY = QueueState(active=ACTIVE, waiting=(WAITS,))


def ids(state: QueueState) -> list[str]:
    return [s.run_id for s in state.waiting]


def arrive(state: QueueState, one: Submission, now_ms: int = 0, **rules: object) -> Step:
    return queue.submit(state, one, now_ms=now_ms, rules=QueueRules(**rules))  # type: ignore[arg-type]  # fields by name


# Nothing is active


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.parametrize("mode", get_args(QueueMode))
def test_an_idle_conversation_starts_a_message_of_any_mode(mode: str) -> None:
    step = arrive(QueueState(), submission("9", mode))
    started = step.state.active
    assert started is not None
    assert (started.run_id, step.effects) == ("9", (Start(started),))
    assert started.queue_mode == FALLBACK.get(mode, mode)
    assert step.state.waiting == ()


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("collect", ["2", "9"]),
        ("followup", ["2", "9"]),
        ("steer", ["2", "9"]),
        ("steer_backlog", ["2", "9"]),
        ("redirect", ["2", "9"]),
        ("interrupt", ["9", "2"]),
    ],
)
def test_a_conversation_that_finds_no_room_keeps_the_line(mode: str, line: list[str]) -> None:
    held = QueueState(waiting=(WAITS,), held=True)
    step = arrive(held, submission("9", mode))
    assert (ids(step.state), step.effects) == (line, ())
    assert queue.start_again(step.state).effects == (Start(step.state.waiting[0]),)


# A run is active


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.behaviour("lemon_router.14")
@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ("channel", ["2", "9", "3", "5"]),
        ("control_plane", ["2", "9", "3", "5"]),
        ("cron", ["2", "3", "5", "9"]),
    ],
)
def test_collect_is_last_and_a_person_goes_before_goals(origin: str, line: list[str]) -> None:
    state = QueueState(active=ACTIVE, waiting=(WAITS, GOAL, submission("5")))
    step = arrive(state, submission("9", origin=origin))
    assert (ids(step.state), step.effects) == (line, ())
    assert step.state.active == ACTIVE


@pytest.mark.behaviour("lemon_router.10")
def test_a_followup_is_last_when_it_may_not_join() -> None:
    step = arrive(BUSY, submission("9", "followup"))
    assert (ids(step.state), step.effects) == (["2", "9"], ())


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.parametrize("mode", STEERS)
def test_a_steer_is_offered_to_the_active_run(mode: str) -> None:
    one = submission("9", mode)
    step = arrive(BUSY, one)
    offered = PendingSteer("1", one, mode, FALLBACK[mode])  # type: ignore[arg-type]  # one of three
    assert step == Step(
        replace(BUSY, steers=(offered,)),
        (DispatchSteer("1", mode, one),),  # type: ignore[arg-type]  # one of three
    )


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.parametrize(
    ("mode", "line"),
    [("steer", ["2", "3", "9"]), ("steer_backlog", ["2", "9", "3"]), ("redirect", ["2", "3", "9"])],
)
def test_a_refused_steer_waits_as_its_fallback_says(mode: str, line: list[str]) -> None:
    state = QueueState(active=ACTIVE, waiting=(WAITS, GOAL))
    offered = arrive(state, submission("9", mode, origin="channel")).state
    step = queue.steer_refused(offered, "9", now_ms=0)
    assert (ids(step.state), step.state.steers) == (line, ())
    waits = next(s for s in step.state.waiting if s.run_id == "9")
    assert waits.queue_mode == FALLBACK[mode]
    assert step.effects == (Requeued(waits, mode),)  # type: ignore[arg-type]  # one of three
    assert queue.steer_refused(step.state, "9", now_ms=0) == Step(step.state)


@pytest.mark.behaviour("lemon_router.16")
@pytest.mark.parametrize("mode", STEERS)
def test_a_taken_steer_never_runs_on_its_own(mode: str) -> None:
    one = submission("9", mode)
    step = queue.steer_taken(arrive(BUSY, one).state, "9")
    assert step == Step(BUSY, (Absorbed(one, "1", mode),))  # type: ignore[arg-type]  # one of three
    assert queue.steer_taken(BUSY, "9") == Step(BUSY)


@pytest.mark.behaviour("lemon_router.10")
@pytest.mark.behaviour("lemon_router.15")
def test_an_interrupt_goes_first_and_cancels_the_active_run() -> None:
    one = submission("9", "interrupt")
    step = arrive(BUSY, one)
    assert (ids(step.state), step.effects) == (["9", "2"], (CancelActive("1", "interrupted"),))
    ended = queue.run_ended(step.state, "1")
    assert (ended.effects, ids(ended.state)) == ((Start(one),), ["2"])


@pytest.mark.behaviour("lemon_router.11")
def test_an_unknown_mode_acts_as_collect_and_redirect_is_kept() -> None:
    assert ids(arrive(BUSY, submission("9", "fifo")).state) == ["2", "9"]
    step = arrive(BUSY, submission("9", "redirect"))
    assert [e.mode for e in step.effects if isinstance(e, DispatchSteer)] == ["redirect"]


@pytest.mark.behaviour("lemon_router.102")
@pytest.mark.parametrize("mode", STEERS)
def test_what_cannot_be_steered_keeps_its_place_and_later_corrections_get_through(
    mode: str,
) -> None:
    """Field report: a picture in the line must not turn every later steer into a follow-up."""
    picture = submission("8", mode, images=(IMAGE,))
    step = arrive(BUSY, picture)
    assert (ids(step.state), step.effects, step.state.steers) == (["2", "8"], (), ())
    correction = submission("9", mode)
    later = arrive(step.state, correction, now_ms=10)
    assert ids(later.state) == ["2", "8"]
    assert [e.submission for e in later.effects if isinstance(e, DispatchSteer)] == [correction]


@pytest.mark.parametrize(
    "one",
    [
        submission("9", "steer", who="somebody else"),
        submission("9", "steer", policy={"deny": ["bash"]}),
        submission("9", "steer", prompt="  ", images=(IMAGE,)),
    ],
    ids=["principal", "policy", "picture"],
)
def test_a_run_is_not_steered_by_a_message_with_less_authority(one: Submission) -> None:
    step = arrive(BUSY, one)
    assert (ids(step.state), step.state.steers) == (["2", "9"], ())


# Joining


def followup(run_id: str, **fields: object) -> Submission:
    return submission(run_id, "followup", **fields)  # type: ignore[arg-type]  # fields by name


@pytest.mark.behaviour("lemon_router.12")
def test_followups_join_within_the_window_and_each_restarts_it() -> None:
    first = followup("7", images=(IMAGE,), meta={"user_msg_id": "m1", "k": 1})
    state = arrive(BUSY, first, now_ms=1_000).state
    second = followup("8", meta={"k": 2}, policy={"deny": ["bash"]})
    step = arrive(state, second, now_ms=1_500)
    assert step.effects == (Absorbed(first, "8", "followup"),)
    assert ids(step.state) == ["2", "8"]
    both = step.state.waiting[-1].command
    assert (both.prompt, both.images) == ("7\n8", (IMAGE,))
    assert both.meta == {"user_msg_id": "m1", "k": 2}
    assert both.tool_policy is not None
    assert not both.tool_policy.allowed("bash")
    assert both.execution_context is not None
    assert not both.execution_context.capabilities.allowed("bash")
    third = arrive(step.state, followup("9", meta={"user_msg_id": "m3"}), now_ms=2_000)
    assert [s.command.prompt for s in third.state.waiting] == ["2", "7\n8\n9"]
    assert third.state.waiting[-1].meta["user_msg_id"] == "m3"
    late = arrive(third.state, followup("10"), now_ms=2_501)
    assert ids(late.state) == ["2", "9", "10"]


@pytest.mark.behaviour("lemon_router.12")
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (followup("7"), followup("8", who="somebody else")),
        (followup("7", meta={"task_auto_followup": True}), followup("8")),
        (followup("7"), followup("8", meta={"async_followups": [{"source": "task"}]})),
        (followup("7"), followup("8", session_key="agent:b:main")),
        (followup("7"), followup("8", cwd="/usr")),
        (submission("7"), followup("8")),
    ],
    ids=["principal", "older async", "newer async", "session", "directory", "no followup"],
)
def test_messages_that_may_not_join_stay_apart(older: Submission, newer: Submission) -> None:
    state = QueueState(active=ACTIVE, waiting=(older,), last_followup_at_ms=0)
    step = arrive(state, newer)
    assert (ids(step.state), step.effects) == (["7", "8"], ())


# Results of background work


@pytest.mark.behaviour("lemon_router.13")
@pytest.mark.parametrize("key", ["task_auto_followup", "delegated_auto_followup"])
def test_a_result_is_offered_to_the_live_parent_and_its_receipt_follows(key: str) -> None:
    one = followup("8", meta={key: {"task_id": "t1", "run_id": "child"}})
    step = arrive(BUSY, one, now_ms=5)
    (pending,) = step.state.steers
    source = key.removesuffix("_auto_followup")
    base = {"source": source, "task_id": "t1", "run_id": "child"}
    assert pending.submission.meta["async_followups"] == [
        {
            **base,
            "delivery": "steer",
            "delivery_receipt": {
                "requested_mode": "followup",
                "actual_mode": "steer",
                "status": "dispatched_to_active",
                "decided_at_ms": 5,
                "fallback_mode": "followup",
                "active_run_id": "1",
            },
        }
    ]
    refused = queue.steer_refused(step.state, "8", now_ms=9).state.waiting[-1]
    assert refused.meta["async_followups"] == [
        {
            **base,
            "delivery": "followup",
            "delivery_receipt": {
                "requested_mode": "followup",
                "actual_mode": "followup",
                "status": "fallback_queued",
                "decided_at_ms": 9,
                "fallback_mode": "followup",
            },
        }
    ]
    assert refused.command.meta == refused.meta


@pytest.mark.behaviour("lemon_router.13")
def test_results_of_background_work_stay_apart() -> None:
    state = BUSY
    for run_id in ("7", "8", "9"):
        entries = {"async_followups": [{"source": "task", "task_id": run_id}]}
        state = arrive(state, followup(run_id, meta=entries)).state
    assert ids(state) == ["2", "7", "8", "9"]
    receipts = [s.meta["async_followups"] for s in state.waiting[1:]]
    assert [r[0]["delivery_receipt"]["status"] for r in receipts] == ["queued"] * 3  # type: ignore[index]  # lists of maps


def test_the_mode_that_was_asked_for_first_survives() -> None:
    earlier = {"source": "task", "delivery_receipt": {"requested_mode": "redirect"}}
    one = followup("8", meta={"async_followups": [earlier]})
    entries = arrive(BUSY, one).state.waiting[-1].meta["async_followups"]
    assert isinstance(entries, list)
    assert entries[0]["delivery_receipt"]["requested_mode"] == "redirect"


# Caps


@pytest.mark.behaviour("lemon_router.104")
@pytest.mark.parametrize("drop", get_args(DropRule))
def test_past_the_cap_the_sum_fits_and_what_runs_is_never_a_victim(drop: DropRule) -> None:
    """Field report: limit two, one in handling, four more at once."""
    state, ended = QueueState(), dict[str, str]()
    for run_id in ("1", "2", "3", "4", "5"):
        step = arrive(state, submission(run_id), cap=2, drop=drop)
        state = step.state
        for effect in step.effects:
            match effect:
                case Dropped(submissions, reason):
                    ended.update({s.run_id: f"dropped {reason}" for s in submissions})
                case Refused(one, reason):
                    ended[one.run_id] = f"refused {reason}"
                case _:
                    assert effect == Start(submission("1"))
    assert state.active is not None
    assert state.active.run_id == "1"
    assert len(state.waiting) == 2
    assert {
        "oldest": (["4", "5"], {"2": "dropped queue_full", "3": "dropped queue_full"}),
        "newest": (["2", "3"], {"4": "dropped queue_full", "5": "dropped queue_full"}),
        "reject": (["2", "3"], {"4": "refused queue_full", "5": "refused queue_full"}),
    }[drop] == (ids(state), ended)


@pytest.mark.behaviour("lemon_router.104")
def test_twenty_quick_messages_run_one_by_one_in_order() -> None:
    """Field report: collect mode drops none of twenty quick messages."""
    state, started = QueueState(), list[str]()
    names = [str(n) for n in range(1, 21)]
    for name in names:
        state = arrive(state, submission(name)).state
    while state.active is not None:
        started.append(state.active.run_id)
        state = queue.run_ended(state, state.active.run_id).state
    assert started == names


@pytest.mark.parametrize("drop", get_args(DropRule))
def test_steers_joins_and_interrupts_are_not_counted(drop: DropRule) -> None:
    full = QueueState(active=ACTIVE, waiting=(WAITS, followup("3")), last_followup_at_ms=0)
    steer = arrive(full, submission("9", "steer"), cap=2, drop=drop)
    assert [e for e in steer.effects if not isinstance(e, DispatchSteer)] == []
    fallen = queue.steer_refused(steer.state, "9", now_ms=9_999, rules=QueueRules(cap=2, drop=drop))
    assert ids(fallen.state) == ["2", "3", "9"]
    joined = arrive(full, followup("9"), cap=2, drop=drop)
    assert ids(joined.state) == ["2", "9"]
    first = arrive(full, submission("9", "interrupt"), cap=2, drop=drop)
    assert ids(first.state) == ["9", "2", "3"]


# Ends


@pytest.mark.behaviour("lemon_router.17")
def test_the_end_of_a_run_settles_what_was_offered_to_it() -> None:
    state = BUSY
    offered = [submission("7", "steer"), submission("8", "steer"), submission("9", "steer_backlog")]
    for one in offered:
        state = arrive(state, one).state
    step = queue.run_ended(state, "1", applied={"7"}, now_ms=10_000)
    assert [type(e) for e in step.effects] == [Absorbed, Requeued, Requeued, Start]
    assert step.effects[0] == Absorbed(offered[0], "1", "steer")
    assert (step.state.active, step.state.steers) == (WAITS, ())
    assert [(s.run_id, s.queue_mode) for s in step.state.waiting] == [
        ("8", "followup"),
        ("9", "collect"),
    ]


@pytest.mark.behaviour("lemon_router.103")
@pytest.mark.parametrize("mode", STEERS)
def test_a_steer_at_the_very_end_runs_once_in_either_order(mode: str) -> None:
    """Field report: a steer aimed at a run that has just ended is dropped."""
    alone, one = QueueState(active=ACTIVE), submission("9", mode)
    before = queue.run_ended(arrive(alone, one).state, "1")
    after = arrive(queue.run_ended(alone, "1").state, one)
    for step in (before, after):
        starts = [e.submission for e in step.effects if isinstance(e, Start)]
        assert [(s.run_id, s.command.prompt) for s in starts] == [("9", "9")]
    # The answer that comes late changes nothing any more.
    assert queue.steer_taken(before.state, "9") == Step(before.state)


def test_late_news_of_another_run_changes_nothing() -> None:
    assert queue.run_ended(BUSY, "9") == Step(BUSY)
    assert queue.run_ended(QueueState(), "1") == Step(QueueState())
    assert queue.start_refused(BUSY, "9") == Step(BUSY)
    assert queue.start_failed(BUSY, "9", "x") == Step(BUSY)


@pytest.mark.behaviour("lemon_router.101")
@pytest.mark.parametrize("mode", get_args(QueueMode))
def test_a_message_behind_a_run_that_ends_badly_runs_next_in_every_mode(mode: str) -> None:
    """Field report: messages queued behind a run that times out disappear."""
    state = arrive(QueueState(active=ACTIVE), submission("9", mode)).state
    step = queue.run_ended(state, "1")
    assert [e.submission.run_id for e in step.effects if isinstance(e, Start)] == ["9"]


@pytest.mark.behaviour("lemon_router.21")
def test_a_start_that_finds_no_room_stays_the_head_and_a_hopeless_one_is_dropped() -> None:
    next_up = queue.run_ended(QueueState(active=ACTIVE, waiting=(WAITS, OTHERS)), "1").state
    held = queue.start_refused(next_up, "2")
    assert held == Step(QueueState(waiting=(WAITS, OTHERS), held=True))
    again = queue.start_again(held.state)
    assert again == Step(QueueState(active=WAITS, waiting=(OTHERS,)), (Start(WAITS),))
    hopeless = queue.start_failed(again.state, "2", "context_expired")
    assert hopeless == Step(
        QueueState(active=OTHERS), (Dropped((WAITS,), "context_expired"), Start(OTHERS))
    )


def test_an_arriving_message_without_room_is_taken_back() -> None:
    held = queue.start_refused(arrive(QueueState(), WAITS).state, "2").state
    assert queue.withdraw(held, "2") == Step(QueueState())


# Aborts


@pytest.mark.behaviour("lemon_router.18")
def test_aborting_a_run_cancels_or_drops_it_wherever_it_stands() -> None:
    offered = submission("9", "steer")
    state = arrive(QueueState(active=ACTIVE, waiting=(WAITS, OTHERS)), offered).state
    assert queue.abort_run(state, "1", "x") == Step(state, (CancelActive("1", "x"),))
    assert queue.abort_run(state, "2", "x") == Step(
        replace(state, waiting=(OTHERS,)), (Dropped((WAITS,), "x"),)
    )
    assert queue.abort_run(state, "9", "x") == Step(
        replace(state, steers=()), (Dropped((offered,), "x"),)
    )
    assert queue.abort_run(state, "99", "x") == Step(state)


@pytest.mark.behaviour("lemon_router.18")
def test_aborting_a_session_leaves_the_others_of_a_shared_conversation() -> None:
    offered = submission("9", "steer")
    state = arrive(QueueState(active=ACTIVE, waiting=(WAITS, OTHERS)), offered).state
    assert queue.abort_session(state, "agent:a:main", "x") == Step(
        QueueState(active=ACTIVE, waiting=(OTHERS,)),
        (Dropped((WAITS, offered), "x"), CancelActive("1", "x")),
    )
    assert queue.abort_session(state, "agent:b:main", "x") == Step(
        replace(state, waiting=(WAITS,)), (Dropped((OTHERS,), "x"),)
    )


# After a restart


def test_restored_messages_wait_in_order_until_they_are_released() -> None:
    state = QueueState()
    for one in (
        submission("2"),
        submission("3", "steer"),
        submission("4", "steer_backlog"),
        submission("5", "interrupt"),
        followup("6"),
        followup("7"),
    ):
        step = queue.restore(state, one)
        assert step.effects == ()
        state = step.state
    assert [(s.run_id, s.queue_mode) for s in state.waiting] == [
        ("5", "interrupt"),
        ("2", "collect"),
        ("3", "followup"),
        ("4", "collect"),
        ("6", "followup"),
        ("7", "followup"),
    ]
    assert queue.start_again(state).effects == (Start(state.waiting[0]),)
