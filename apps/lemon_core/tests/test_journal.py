"""The journal: numbering, replay, folding, and the bounds of memory."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lemon_core.bridges import ActionState, RunNotFound, RunSnapshot, StreamItem, StreamLost
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
    RunAbsorbed,
    RunCompleted,
    RunFailed,
    RunStarted,
)
from lemon_core.journal import Journal, JournalLimits, event_seq, stream
from lemon_core.resume import ResumeToken
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

RUN = "run_1"
SESSION = "agent:default:main"


def delta(seq: int, text: str = "word ", run_id: str = RUN) -> Event:
    return Event("delta", 1_000 + seq, Delta(run_id=run_id, seq=seq, text=text), {"run_id": run_id})


def started(run_id: str = RUN) -> Event:
    return Event("run_started", 1_000, RunStarted(run_id=run_id), {"run_id": run_id})


def completed(run_id: str = RUN, answer: str = "done") -> Event:
    payload = RunCompleted(completed=Completion(ok=True, answer=answer), duration_ms=5)
    return Event("run_completed", 9_000, payload, {"run_id": run_id})


def action(phase: str, *, ok: bool | None = None, detail: dict[str, object] | None = None) -> Event:
    payload = EngineAction.model_validate(
        {
            "action": Action(id="a1", kind="tool", title="read", detail=detail),
            "phase": phase,
            "ok": ok,
        }
    )
    return Event("engine_action", 1_500, payload, {"run_id": RUN})


def journal(**limits: int) -> Journal:
    return Journal(epoch="epoch_1", clock=FakeClock(), limits=JournalLimits(**limits))


def seqs(items: tuple[StreamItem, ...] | None) -> list[int]:
    assert items is not None
    return [event_seq(item) for item in items if isinstance(item, Event)]


def filled(count: int, **limits: int) -> Journal:
    held = journal(**limits)
    held.open(RUN, SESSION)
    for seq in range(1, count + 1):
        held.append(RUN, delta(seq, f"w{seq} "))
    return held


def test_events_of_a_run_are_numbered_from_one() -> None:
    held = journal()
    held.open(RUN, SESSION)
    held.open("run_2", SESSION)
    numbers = [
        held.append(run_id, delta(1, run_id=run_id)).meta["event_seq"]
        for run_id in (RUN, RUN, "run_2", RUN)
    ]
    assert numbers == [1, 2, 1, 3]
    assert held.last_seq(RUN) == 3
    assert held.last_seq("unknown") == 0


def test_an_event_of_another_numbering_gets_the_number_of_this_one() -> None:
    held = filled(4)
    relayed = Event("note", 1, {}, {"event_seq": 77, "engine_event_seq": 77})
    assert held.append(RUN, relayed).meta == {"event_seq": 5, "engine_event_seq": 77}


def test_nothing_follows_a_terminal_event() -> None:
    held = filled(1)
    held.append(RUN, completed())
    with pytest.raises(ValueError, match="over"):
        held.append(RUN, delta(2))
    with pytest.raises(KeyError):
        held.append("unknown", delta(1))


def test_replay_goes_on_after_any_number() -> None:
    """Specification lemon_gateway 5.3."""
    held = filled(5)
    held.append(RUN, completed())
    for after in range(6):
        assert seqs(held.replay(RUN, after)) == list(range(after + 1, 7))
    assert held.replay("unknown") is None


def test_a_subscriber_that_has_everything_is_told_the_end_once_more() -> None:
    held = filled(2)
    assert held.replay(RUN, 2) == ()
    held.append(RUN, completed())
    assert seqs(held.replay(RUN, 3)) == [3]


def test_another_epoch_gets_one_snapshot_and_the_end() -> None:
    held = filled(3)
    held.append(RUN, completed())
    items = held.replay(RUN, 2, "epoch_0")
    assert items is not None
    snapshot, end = items
    assert isinstance(snapshot, RunSnapshot)
    assert isinstance(end, Event)
    assert (snapshot.stream_epoch, snapshot.last_event_seq) == ("epoch_1", 3)
    assert snapshot.accumulated_text == "w1 w2 w3 "
    assert (snapshot.state, snapshot.terminal) == ("running", None)
    assert (end.type, event_seq(end)) == ("run_completed", 4)


def test_a_number_that_was_never_given_out_gets_a_snapshot() -> None:
    items = filled(3).replay(RUN, 9)
    assert items is not None
    assert isinstance(items[0], RunSnapshot)
    assert len(items) == 1


def test_over_the_event_limit_the_oldest_fold_into_the_snapshot() -> None:
    held = filled(100, max_events=40)
    held.append(RUN, completed())
    items = held.replay(RUN)
    assert items is not None
    snapshot = items[0]
    assert isinstance(snapshot, RunSnapshot)
    assert len(items) <= 41
    assert seqs(items) == list(range(snapshot.last_event_seq + 1, 102))
    told = snapshot.accumulated_text + "".join(
        item.payload.text
        for item in items
        if isinstance(item, Event) and isinstance(item.payload, Delta)
    )
    assert told == "".join(f"w{seq} " for seq in range(1, 101))
    assert snapshot.last_delta_seq == snapshot.last_event_seq


def test_the_terminal_event_is_never_folded_away() -> None:
    held = filled(50, max_events=1, max_bytes=1)
    held.append(RUN, completed())
    assert seqs(held.replay(RUN)) == [51]


def test_over_the_byte_limit_events_fold_and_old_details_go() -> None:
    held = journal(max_bytes=20_000)
    held.open(RUN, SESSION)
    held.append(RUN, action("started", detail={"text": "x" * 30_000}))
    assert held.total_bytes <= 20_000
    items = held.replay(RUN)
    assert items is not None
    snapshot = items[0]
    assert isinstance(snapshot, RunSnapshot)
    assert snapshot.actions == (ActionState("a1", "tool", "read", "started"),)


def test_a_snapshot_is_the_sum_of_the_events() -> None:
    held = journal()
    held.open(RUN, SESSION, state="queued", phase="dispatched_to_gateway")
    held.append(RUN, started())
    token = ResumeToken(engine="lemon", value="sess_1")
    held.append(RUN, Event("engine_started", 1_100, EngineStarted(resume=token), {}))
    held.append(RUN, action("started", detail={"path": "a.txt"}))
    held.append(RUN, delta(1, "Hello "))
    held.append(RUN, action("completed", ok=False))
    held.append(RUN, delta(2, "world"))
    open_one, answered = (PendingApproval(id=name, tool="bash") for name in ("apr_1", "apr_2"))
    for pending in (open_one, answered):
        asked = ApprovalRequested(approval_id=pending.id, pending=pending)
        held.append(RUN, Event("approval_requested", 1_600, asked, {}))
    said = ApprovalResolved(approval_id="apr_2", decision="deny")
    held.append(RUN, Event("approval_resolved", 1_700, said, {}))
    held.note(RUN, phase="streaming", applied_steer="run_s")
    expected = RunSnapshot(
        run_id=RUN,
        session_key=SESSION,
        state="running",
        stream_epoch="epoch_1",
        phase="streaming",
        last_event_seq=9,
        last_delta_seq=2,
        accumulated_text="Hello world",
        resume=token,
        actions=(ActionState("a1", "tool", "read", "completed", False, {"path": "a.txt"}),),
        applied_steers=("run_s",),
        started_at_ms=1_000,
        open_approvals=(open_one,),
    )
    assert held.snapshot(RUN) == expected
    held.append(RUN, completed())
    ended = held.snapshot(RUN)
    assert ended is not None
    assert (ended.state, ended.terminal, ended.duration_ms) == (
        "terminal",
        Completion(ok=True, answer="done"),
        5,
    )
    assert ended.open_approvals == ()


@pytest.mark.parametrize(
    ("event_type", "payload", "error"),
    [
        ("run_failed", RunFailed(run_id=RUN, reason="lost"), "lost"),
        (
            "run_absorbed",
            RunAbsorbed(run_id=RUN, absorbed_by="run_2", mode="steer"),
            {"code": "absorbed", "detail": "run_2"},
        ),
        ("run_completed", {"not": "a completion"}, "unreadable_completion"),
    ],
)
def test_every_terminal_event_ends_the_run(event_type: str, payload: object, error: object) -> None:
    held = filled(1)
    held.append(RUN, Event(event_type, 1, payload, {}))
    snapshot = held.snapshot(RUN)
    assert snapshot is not None
    assert snapshot.state == "terminal"
    assert snapshot.terminal is not None
    assert (snapshot.terminal.ok, snapshot.terminal.error) == (False, error)
    assert not held.is_live(RUN)


async def test_runs_leave_after_retention_and_their_owner_is_told() -> None:
    clock = FakeClock()
    dropped: list[str] = []
    held = Journal(
        epoch="e", clock=clock, limits=JournalLimits(retention_ms=1_000), on_drop=dropped.append
    )
    held.open(RUN, SESSION)
    held.append(RUN, completed())
    held.open("run_live", SESSION)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(held.serve)
        with anyio.fail_after(5):
            await clock.wait_for_sleepers()
            await clock.advance(999)
            assert held.known(RUN)
            await clock.advance(1)
        assert (held.run_ids(), dropped) == (("run_live",), [RUN])
        tasks.cancel_scope.cancel()
    held.close_run("run_live")
    assert (held.total_bytes, dropped) == (0, [RUN])


def test_past_the_total_the_oldest_ended_run_shrinks_before_any_goes() -> None:
    dropped: list[str] = []
    held = Journal(
        epoch="e",
        clock=FakeClock(),
        limits=JournalLimits(total_max_bytes=60_000),
        on_drop=dropped.append,
    )
    for number in range(1, 3):
        run_id = f"run_{number}"
        held.open(run_id, SESSION)
        for seq in range(1, 15):
            held.append(run_id, delta(seq, run_id=run_id))
        held.append(run_id, completed(run_id))
    held.open("run_3", SESSION)
    for seq in range(1, 5):
        held.append("run_3", delta(seq, run_id="run_3"))
    assert dropped == []
    assert seqs(held.replay("run_1")) == [15]
    assert seqs(held.replay("run_2")) == list(range(1, 16))
    assert held.total_bytes <= 60_000
    for seq in range(5, 40):
        held.append("run_3", delta(seq, run_id="run_3"))
    assert dropped == ["run_1", "run_2"]
    assert held.total_bytes <= 60_000


def test_ended_runs_have_small_bounds_of_their_own() -> None:
    """The oldest give up their single events, then leave; the newest keeps what it has, and none
    loses text or end on the way."""
    dropped: list[str] = []
    limits = JournalLimits(ended_max_runs=3, ended_max_bytes=30_000)
    held = Journal(epoch="e", clock=FakeClock(), limits=limits, on_drop=dropped.append)
    held.open("live", SESSION)
    held.append("live", delta(1, run_id="live"))
    for number in range(1, 6):
        run_id = f"run_{number}"
        held.open(run_id, SESSION)
        for seq in range(1, 12):
            held.append(run_id, delta(seq, run_id=run_id))
        held.append(run_id, completed(run_id, answer="word " * 11))
    assert dropped == ["run_1", "run_2"]
    assert held.run_ids() == ("live", "run_3", "run_4", "run_5")
    snapshot, end = held.replay("run_4") or ()
    assert isinstance(snapshot, RunSnapshot)
    assert snapshot.accumulated_text == "word " * 11
    assert isinstance(end, Event)
    assert event_seq(end) == 12
    assert seqs(held.replay("run_5")) == list(range(1, 13))
    assert seqs(held.replay("live")) == [1]
    one = Journal(epoch="e", clock=FakeClock(), limits=JournalLimits(ended_max_bytes=1))
    one.open(RUN, SESSION)
    one.append(RUN, delta(1))
    one.append(RUN, completed())
    assert seqs(one.replay(RUN)) == [1, 2]


def test_facts_join_the_meta_of_the_numbered_event() -> None:
    held = journal()
    held.open(RUN, SESSION)
    event = delta(1)
    numbered = held.append(RUN, event, engine_event_seq=7)
    assert numbered.meta == {**event.meta, "engine_event_seq": 7, "event_seq": 1}


async def test_the_stream_of_a_live_run_wakes_on_events_and_ends_with_the_run() -> None:
    held = filled(2)
    taken: list[int] = []

    async def read() -> None:
        async for item in stream(held, RUN, after_seq=1):
            assert isinstance(item, Event)
            taken.append(event_seq(item))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert taken == [2]
            held.append(RUN, delta(3))
            await anyio.wait_all_tasks_blocked()
            assert taken == [2, 3]
            held.append(RUN, completed())
    assert taken == [2, 3, 4]


async def test_the_stream_of_a_run_the_journal_does_not_hold() -> None:
    over = RunSnapshot(RUN, SESSION, "terminal", "e", terminal=Completion(ok=True))

    async def history(run_id: str) -> tuple[StreamItem, ...]:
        return (over,) if run_id == RUN else ()

    held = journal()
    with anyio.fail_after(5):
        assert [item async for item in stream(held, RUN, past=history)] == [over]
        for past in (history, None):
            with pytest.raises(RunNotFound):
                [item async for item in stream(held, "unknown", past=past)]


async def test_a_reader_far_behind_gets_a_snapshot_in_between() -> None:
    held = filled(3, max_events=10)
    with anyio.fail_after(5):
        items = stream(held, RUN)
        assert isinstance(await anext(items), Event)
        for seq in range(4, 60):
            held.append(RUN, delta(seq))
        held.append(RUN, completed())
        rest = [item async for item in items]
    numbers = [
        item.last_event_seq if isinstance(item, RunSnapshot) else event_seq(item) for item in rest
    ]
    assert any(isinstance(item, RunSnapshot) for item in rest)
    assert numbers == sorted(numbers)
    assert numbers[-1] == 60


async def test_a_reader_of_a_run_that_is_dropped_loses_the_stream() -> None:
    held = filled(3)
    with anyio.fail_after(5):
        items = stream(held, RUN)
        for _ in range(3):
            await anext(items)
        held.close_run(RUN)
        with pytest.raises(StreamLost):
            await anext(items)


async def test_a_follower_shares_a_batch_between_runs() -> None:
    held = journal()
    for run_id in ("run_a", "run_b"):
        held.open(run_id, SESSION)
        for seq in range(1, 301):
            held.append(run_id, delta(seq, run_id=run_id))
    with held.follower() as follower:
        for run_id in ("run_a", "run_b"):
            assert follower.add(run_id)
        assert not follower.add("unknown")
        first, second = follower.take(), follower.take()
        assert {run_id for run_id, _ in first} == {"run_a"}
        assert {run_id for run_id, _ in second} == {"run_b"}
        assert len(first) == len(second) == 256
        rest = follower.take()
        assert [run_id for run_id, _ in rest] == ["run_a"] * 44 + ["run_b"] * 44
        follower.discard("run_a")
        held.append("run_a", delta(301))
        assert follower.take() == []


def test_a_follower_overflows_only_by_what_arrives_while_it_sends() -> None:
    held = filled(50)
    with held.follower(unsent_limit=10) as follower:
        follower.add(RUN)
        assert not follower.overflowed.is_set()
        for seq in range(51, 61):
            held.append(RUN, delta(seq))
        assert not follower.overflowed.is_set()
        follower.sending()
        for seq in range(61, 72):
            held.append(RUN, delta(seq))
        assert follower.overflowed.is_set()


class JournalMachine(RuleBasedStateMachine):
    """Runs come, go on and end under small limits, while subscribers come and go.

    The model of a subscriber is what a client keeps: the text, the last number, and the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limits = JournalLimits(
            max_events=12, max_bytes=40_000, total_max_bytes=80_000, retention_ms=1_000
        )
        self.clock = FakeClock()
        self.dropped: list[str] = []
        self.journal = Journal(
            epoch="e", clock=self.clock, limits=self.limits, on_drop=self.dropped.append
        )
        self.texts: dict[str, list[str]] = {}
        self.ended: set[str] = set()
        self.subscribers: list[_Subscriber] = []
        self.numbered: dict[str, int] = {}

    @property
    def live(self) -> list[str]:
        return [run_id for run_id in self.texts if run_id not in self.ended]

    @rule()
    def open(self) -> None:
        run_id = f"run_{len(self.texts)}"
        self.texts[run_id] = []
        self.numbered[run_id] = 0
        self.journal.open(run_id, SESSION)

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data(), count=st.integers(1, 30), size=st.sampled_from([1, 50, 3_000]))
    def append(self, data: st.DataObject, count: int, size: int) -> None:
        run_id = data.draw(st.sampled_from(self.live))
        for _ in range(count):
            text = chr(97 + len(self.texts[run_id]) % 26) * size
            self.texts[run_id].append(text)
            event = self.journal.append(run_id, delta(len(self.texts[run_id]), text, run_id=run_id))
            self.numbered[run_id] += 1
            assert event.meta["event_seq"] == self.numbered[run_id]

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(self.live))
        self.ended.add(run_id)
        self.journal.append(run_id, completed(run_id))
        self.numbered[run_id] += 1

    @precondition(lambda self: bool(self.texts))
    @rule(data=st.data(), foreign=st.booleans())
    def subscribe(self, data: st.DataObject, foreign: bool) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.texts)))
        after = data.draw(st.integers(0, self.numbered[run_id]))
        subscriber = _Subscriber(run_id, after, self.texts[run_id])
        items = self.journal.replay(run_id, after, "other" if foreign else None)
        if items is None:
            assert run_id in self.dropped
            return
        if foreign:
            assert isinstance(items[0], RunSnapshot)
        subscriber.take(items)
        assert subscriber.text == "".join(self.texts[run_id])
        assert subscriber.over is (run_id in self.ended)

    @rule(ms=st.integers(1, 2_000))
    def wait(self, ms: int) -> None:
        self.clock._move_to(self.clock.monotonic_ms() + ms)
        self.journal.sweep()

    @invariant()
    def memory_is_bounded(self) -> None:
        runs = list(self.journal._runs.values())
        assert self.journal.total_bytes == sum(run.bytes for run in runs)
        for run in runs:
            held = sum(run.sizes) + run.fold.bytes
            assert run.bytes == held + 2_000
            texts = run.fold.bytes
            assert len(run.events) <= self.limits.max_events
            assert run.bytes <= self.limits.max_bytes + texts + 5_000
        if self.journal.total_bytes > self.limits.total_max_bytes:
            assert all(run.terminal is None and not run.events for run in runs)

    @invariant()
    def what_was_dropped_had_ended(self) -> None:
        assert set(self.dropped) <= self.ended
        assert set(self.journal.run_ids()) == set(self.texts) - set(self.dropped)


class _Subscriber:
    def __init__(self, run_id: str, after: int, texts: list[str]) -> None:
        self.run_id, self.last, self.over = run_id, after, False
        self.text = "".join(texts[:after])

    def take(self, items: tuple[StreamItem, ...]) -> None:
        for item in items:
            if isinstance(item, RunSnapshot):
                self.text, self.last = item.accumulated_text, item.last_event_seq
                continue
            if event_seq(item) <= self.last:  # the end, told once more
                assert item.type == "run_completed"
            else:
                assert event_seq(item) == self.last + 1
                self.last = event_seq(item)
            if isinstance(item.payload, Delta):
                self.text += item.payload.text
            self.over = item.type == "run_completed"


JournalMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestJournalMachine = JournalMachine.TestCase
