"""Readers on the client's side: order, gaps, epochs, full queues; and snapshots as events."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.bridges import ActionState, RunSnapshot, StreamItem, StreamLost
from lemon_core.events import (
    Action,
    ApprovalRequested,
    ApprovalResolved,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    PendingApproval,
)
from lemon_core.journal import Journal, JournalLimits, event_seq
from lemon_core.resume import ResumeToken
from lemon_core.rpc.catch_up import CatchUp
from lemon_core.rpc.run_reader import QUEUE_LIMIT, ReaderQueue, RunReader
from lemon_core.testing import FakeClock
from lemon_core.tests.rpc import samples

RUN = "run_1"


def numbered(seq: int, *, end: bool = False) -> Event:
    event = samples.completed(RUN) if end else samples.delta(RUN, seq)
    return Event(event.type, event.ts_ms, event.payload, {**event.meta, "event_seq": seq})


def snapshot(last: int, epoch: str = "e1", *, end: bool = False, text: str = "") -> RunSnapshot:
    return RunSnapshot(
        RUN,
        samples.SESSION,
        "terminal" if end else "running",
        epoch,
        last_event_seq=last,
        last_delta_seq=last,
        accumulated_text=text,
        terminal=Completion(ok=True) if end else None,
    )


def reader(after: int = 0) -> tuple[RunReader, list[StreamItem]]:
    taken: list[StreamItem] = []

    def deliver(item: StreamItem) -> bool:
        taken.append(item)
        return True

    made = RunReader(RUN, after, deliver)
    made.subscribed("e1")
    return made, taken


def test_only_the_next_event_is_taken() -> None:
    made, taken = reader(after=2)
    for seq in (1, 2, 3, 3, 2, 4):
        made.take(numbered(seq))
    assert [event_seq(item) for item in taken if isinstance(item, Event)] == [3, 4]
    assert not made.behind


def test_a_gap_is_news_only_after_the_replay_began() -> None:
    made, _ = reader()
    behind: list[bool] = []
    for seq in (9, 1, 5):
        made.take(numbered(seq))
        behind.append(made.behind)
    made.subscribed("e1")
    assert [*behind, made.behind] == [False, False, True, False]


def test_the_end_counts_although_it_was_seen_before() -> None:
    made, taken = reader(after=3)
    made.take(numbered(3, end=True))
    assert made.over
    made.take(numbered(4))
    assert taken == []


def test_a_snapshot_is_taken_when_it_tells_more() -> None:
    made, taken = reader(after=3)
    made.take(snapshot(2))
    assert taken == []
    made.take(snapshot(5))
    made.take(numbered(6))
    assert (made.last_seq, len(taken)) == (6, 2)
    made.take(snapshot(1, "e2"))
    assert (made.last_seq, made.epoch) == (1, "e2")
    made.take(snapshot(1, "e2", end=True))
    assert made.over
    assert len(taken) == 4


def test_a_full_queue_refuses_and_nothing_is_skipped() -> None:
    queue = ReaderQueue()
    made = RunReader(RUN, 0, queue.put)
    made.subscribed("e1")
    for seq in range(1, QUEUE_LIMIT + 5):
        made.take(numbered(seq))
    made.take(snapshot(QUEUE_LIMIT + 5))
    assert (made.behind, made.full, made.last_seq) == (True, True, QUEUE_LIMIT)


async def test_a_queue_gives_everything_before_it_fails() -> None:
    queue = ReaderQueue()
    queue.put(numbered(1))
    queue.put(numbered(2))
    queue.end(StreamLost(RUN, "gone"))
    with anyio.fail_after(5):
        assert len(await queue.get()) == 2
        with pytest.raises(StreamLost):
            await queue.get()
    ended = ReaderQueue()
    ended.end()
    assert await ended.get() == []


# --- snapshots as events ---


def test_only_what_is_new_becomes_events() -> None:
    """Specification lemon_gateway 5.3."""
    known = CatchUp(RUN, FakeClock())
    action = Action(id="a", kind="tool", title="read", detail={"p": 1})
    done = Event("engine_action", 1, EngineAction(action=action, phase="completed", ok=False), {})
    begun = Event("engine_started", 1, EngineStarted(), {})
    for event in (begun, numbered(1), done):
        assert known.events(event) == [event]
    token = ResumeToken(engine="lemon", value="s")
    whole = RunSnapshot(
        RUN,
        samples.SESSION,
        "terminal",
        "e2",
        last_event_seq=9,
        last_delta_seq=3,
        accumulated_text="w1 w2 w3 ",
        resume=token,
        actions=(
            ActionState("a", "tool", "read", "completed", False, {"p": 1}),
            ActionState("b", "command", "run", "started"),
            ActionState("c", "unheard of", "x", "started"),
        ),
        terminal=Completion(ok=True),
        duration_ms=4,
    )
    tail, step, end = known.events(whole)
    assert tail.payload == Delta(run_id=RUN, seq=3, text="w2 w3 ")
    assert step.payload == EngineAction(
        action=Action(id="b", kind="command", title="run"), phase="started"
    )
    assert (end.type, event_seq(end)) == ("run_completed", 9)
    assert all(event.meta["synthetic"] is True for event in (tail, step, end))
    assert [event.type for event in known.events(whole)] == ["run_completed"]


def test_questions_that_are_new_or_gone_become_events() -> None:
    """A question in events that are gone is asked all the same; one that ended is closed."""
    known = CatchUp(RUN, FakeClock())
    one, two = (PendingApproval(id=name, tool="bash") for name in ("apr_1", "apr_2"))
    asked = Event("approval_requested", 1, ApprovalRequested(approval_id="apr_1", pending=one), {})
    assert known.events(asked) == [asked]
    state = RunSnapshot(RUN, samples.SESSION, "running", "e", open_approvals=(two,))
    gone, new = known.events(state)
    assert isinstance(gone.payload, ApprovalResolved)
    assert (gone.payload.approval_id, gone.payload.decision) == ("apr_1", "timeout")
    assert new.payload == ApprovalRequested(approval_id="apr_2", pending=two)
    assert known.events(state) == []
    said = ApprovalResolved(approval_id="apr_2", decision="deny")
    assert len(known.events(Event("approval_resolved", 1, said, {}))) == 1
    assert known.events(RunSnapshot(RUN, samples.SESSION, "running", "e")) == []


def test_a_reader_that_knows_nothing_learns_the_resume_token_too() -> None:
    token = ResumeToken(engine="lemon", value="s")
    state = RunSnapshot(RUN, samples.SESSION, "running", "e", resume=token, accumulated_text="hi")
    begun, text = CatchUp(RUN, FakeClock()).events(state)
    assert begun.payload == EngineStarted(resume=token, run_id=RUN, session_key=samples.SESSION)
    assert text.payload == Delta(run_id=RUN, seq=1, text="hi")


@given(
    st.lists(st.sampled_from(["write", "cut", "restart", "read"]), max_size=40),
    st.integers(1, 8),
)
def test_whatever_happens_in_between_the_text_is_whole(steps: list[str], max_events: int) -> None:
    """Writes, lost connections, restarts and foldings in any order; see lemon_gateway 13.21, 22."""
    limits = JournalLimits(max_events=max_events)
    journal = Journal(epoch="e0", clock=FakeClock(), limits=limits)
    journal.open(RUN, samples.SESSION)
    known = CatchUp(RUN, FakeClock())
    texts: list[str] = []

    def deliver(item: StreamItem) -> bool:
        for event in known.events(item):
            if isinstance(event.payload, Delta):
                texts.append(event.payload.text)
        return True

    made = RunReader(RUN, 0, deliver)
    made.subscribed("e0")
    written = 0

    def read() -> None:
        made.subscribed(journal.epoch)
        for item in journal.replay(RUN, made.last_seq, made.epoch) or ():
            made.take(item)

    for number, step in enumerate([*steps, "end", "read"]):
        if step == "write":
            written += 1
            journal.append(RUN, samples.delta(RUN, written))
        elif step == "restart":
            journal = Journal(epoch=f"e{number}", clock=FakeClock(), limits=limits)
            journal.open(RUN, samples.SESSION)
            for seq in range(1, written + 1):
                journal.append(RUN, samples.delta(RUN, seq))
        elif step == "read":
            read()
        elif step == "end":
            journal.append(RUN, samples.completed(RUN))
    assert "".join(texts) == "".join(f"w{seq} " for seq in range(1, written + 1))
    assert made.over
