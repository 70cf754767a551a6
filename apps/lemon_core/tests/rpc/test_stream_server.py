"""The server's side of the stream: controls, batches, heartbeats, slow peers; and its frames."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import ActionState, RunSnapshot, StreamItem
from lemon_core.errors import LemonError
from lemon_core.events import (
    Action,
    Completion,
    Delta,
    EngineAction,
    Event,
    RunCompleted,
)
from lemon_core.journal import Journal
from lemon_core.rpc.fields import UnsupportedContract
from lemon_core.rpc.frames import FRAME_BYTES, pack
from lemon_core.rpc.run_events import event_from_message
from lemon_core.rpc.status import PeerGone, PermissionDenied, SlowConsumer, TooManyStreams
from lemon_core.rpc.stream_server import RunStreamServer, StreamRegistry
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.testing import FakeClock
from lemon_core.tests.rpc import samples

RUN = "run_1"
HELLO = pb.SubscribeControl(hello=pb.Hello(contract_version=1))
HEARTBEAT_MS = 15_000
LIMIT = 16 * 1024 * 1024


def subscribe(run_id: str = RUN, after_seq: int = 0, epoch: str = "") -> pb.SubscribeControl:
    return pb.SubscribeControl(
        subscribe=pb.Subscribe(run_id=run_id, after_seq=after_seq, stream_epoch=epoch)
    )


class Peer:
    """The other end: says what the test says, takes frames when the test lets it."""

    def __init__(self) -> None:
        self.frames: list[pb.RunEventFrame] = []
        self.reading = anyio.Event()
        self.reading.set()
        self.gone = False
        self._said: deque[pb.SubscribeControl] = deque()
        self._speaking = anyio.Event()
        self._hung_up = False

    async def write(self, message: pb.RunEventFrame, /) -> None:
        await self.reading.wait()
        if self.gone:
            raise RuntimeError("the call is over")
        self.frames.append(message)

    def say(self, *controls: pb.SubscribeControl) -> None:
        self._said.extend(controls)
        self._speaking.set()

    def hang_up(self) -> None:
        self._hung_up = True
        self._speaking.set()

    async def controls(self) -> AsyncIterator[pb.SubscribeControl]:
        while True:
            while self._said:
                yield self._said.popleft()
            if self._hung_up:
                return
            self._speaking = anyio.Event()
            await self._speaking.wait()

    @property
    def events(self) -> list[tuple[str, int]]:
        return [(event.run_id, event.event_seq) for frame in self.frames for event in frame.events]

    @property
    def notes(self) -> list[str]:
        return [note for frame in self.frames if (note := frame.WhichOneof("note"))]


class Rig:
    """A stream that is being served to a peer."""

    def __init__(self, unsent_limit: int) -> None:
        self.clock = FakeClock()
        self.journal = Journal(epoch="epoch_1", clock=self.clock)
        self.peer = Peer()
        self.registry = StreamRegistry(max_streams=1)
        self.past: dict[str, Sequence[StreamItem]] = {}
        self.failure: LemonError | None = None
        self.over = anyio.Event()
        self.unsent_limit = unsent_limit

    async def serve(self) -> None:
        with self.journal.follower(self.unsent_limit) as follower:
            stream = RunStreamServer(
                self.peer,
                follower,
                past=self._past,
                allowed=lambda run_id: run_id != "run_foreign",
                clock=self.clock,
                heartbeat_ms=HEARTBEAT_MS,
                max_message_bytes=LIMIT,
            )
            try:
                await self.registry.serve(stream, self.peer.controls())
            except LemonError as exc:
                self.failure = exc
        self.over.set()

    async def _past(self, run_id: str) -> Sequence[StreamItem]:
        return self.past.get(run_id, ())

    async def settle(self) -> None:
        await anyio.wait_all_tasks_blocked()

    def write(self, count: int, run_id: str = RUN) -> None:
        if not self.journal.known(run_id):
            self.journal.open(run_id, samples.SESSION)
        start = self.journal.last_seq(run_id)
        for seq in range(start + 1, start + count + 1):
            self.journal.append(run_id, samples.delta(run_id, seq))


@asynccontextmanager
async def served(unsent_limit: int = 2_000) -> AsyncIterator[Rig]:
    rig = Rig(unsent_limit)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.serve)
            await rig.settle()
            yield rig
            tasks.cancel_scope.cancel()


async def test_what_is_ready_goes_out_in_one_frame() -> None:
    """Ruling 2 of the design: batches, at most 256 events each."""
    async with served() as rig:
        rig.write(300)
        rig.peer.say(HELLO, subscribe())
        await rig.settle()
        assert [len(frame.events) for frame in rig.peer.frames] == [256, 44]
        rig.write(2, "run_2")
        rig.peer.say(subscribe("run_2"))
        await rig.settle()
        rig.write(3)
        rig.write(3, "run_2")
        await rig.settle()
        assert [len(frame.events) for frame in rig.peer.frames] == [256, 44, 2, 6]
        assert rig.peer.events[-6:] == [(RUN, n) for n in (301, 302, 303)] + [
            ("run_2", n) for n in (3, 4, 5)
        ]


async def test_the_subscription_ends_with_the_run_and_the_stream_with_the_last_one() -> None:
    async with served() as rig:
        rig.write(2)
        rig.peer.say(HELLO, subscribe(after_seq=1, epoch="epoch_1"))
        rig.peer.hang_up()
        await rig.settle()
        assert not rig.over.is_set()
        rig.journal.append(RUN, samples.completed(RUN))
        await rig.over.wait()
        assert rig.peer.events == [(RUN, 2), (RUN, 3)]
        assert (rig.failure, rig.peer.notes) == (None, [])


async def test_unsubscribing_stops_the_run_alone() -> None:
    async with served() as rig:
        rig.write(1)
        rig.write(1, "run_2")
        ack = pb.SubscribeControl(ack=pb.Ack(run_id=RUN, event_seq=1))
        unsubscribe = pb.SubscribeControl(unsubscribe=pb.Unsubscribe(run_id=RUN))
        rig.peer.say(HELLO, subscribe(), subscribe("run_2"), ack, unsubscribe)
        await rig.settle()
        rig.peer.frames.clear()
        rig.write(1)
        rig.write(1, "run_2")
        await rig.settle()
        assert rig.peer.events == [("run_2", 2)]


async def test_subscribing_again_moves_the_position() -> None:
    async with served() as rig:
        rig.write(3)
        rig.peer.say(HELLO, subscribe())
        await rig.settle()
        rig.peer.say(subscribe(after_seq=1, epoch="epoch_1"))
        await rig.settle()
        assert rig.peer.events == [(RUN, n) for n in (1, 2, 3, 2, 3)]


@pytest.mark.parametrize("epoch", ["epoch_0", ""])
async def test_a_number_of_another_epoch_gets_a_snapshot(epoch: str) -> None:
    async with served() as rig:
        rig.write(3)
        rig.peer.say(HELLO, subscribe(after_seq=2, epoch=epoch))
        await rig.settle()
        rig.write(1)
        await rig.settle()
        assert rig.peer.notes == ["snapshot"]
        assert rig.peer.frames[0].snapshot.accumulated_text == "w1 w2 w3 "
        assert rig.peer.events == [(RUN, 4)]


async def test_a_run_the_journal_does_not_hold_comes_from_history_or_not_at_all() -> None:
    async with served() as rig:
        rig.past[RUN] = (
            RunSnapshot(RUN, samples.SESSION, "terminal", "e", terminal=Completion(ok=True)),
        )
        rig.peer.say(HELLO, subscribe(), subscribe("unknown"))
        await rig.settle()
        assert rig.peer.notes == ["snapshot", "not_found"]
        rig.peer.hang_up()
        await rig.over.wait()


async def test_a_run_that_is_dropped_is_told_as_not_found() -> None:
    async with served() as rig:
        rig.write(1)
        rig.peer.say(HELLO, subscribe())
        await rig.settle()
        rig.journal.close_run(RUN)
        await rig.settle()
        assert rig.peer.notes == ["not_found"]


@pytest.mark.parametrize(
    ("controls", "error"),
    [
        ([subscribe()], InvalidMessage),
        ([pb.SubscribeControl()], InvalidMessage),
        ([pb.SubscribeControl(hello=pb.Hello(contract_version=9))], UnsupportedContract),
        ([HELLO, subscribe("")], InvalidMessage),
        ([HELLO, subscribe("run_foreign")], PermissionDenied),
    ],
)
async def test_a_wrong_control_ends_the_stream(
    controls: Iterable[pb.SubscribeControl], error: type[LemonError]
) -> None:
    async with served() as rig:
        rig.peer.say(*controls)
        await rig.over.wait()
        assert type(rig.failure) is error
        assert rig.peer.frames == []


async def test_a_heartbeat_goes_out_every_15_seconds() -> None:
    """Specification lemon_gateway 5.3."""
    async with served() as rig:
        rig.peer.say(HELLO)
        await rig.clock.wait_for_sleepers()
        await rig.clock.advance(14_999)
        assert rig.peer.frames == []
        await rig.clock.advance(1)
        await rig.settle()
        await rig.clock.advance(15_000)
        await rig.settle()
        assert [frame.heartbeat.ts_ms for frame in rig.peer.frames] == [
            1_700_000_015_000,
            1_700_000_030_000,
        ]


async def test_a_peer_that_falls_behind_is_told_and_let_go() -> None:
    """Specification lemon_gateway 13.25."""
    async with served(unsent_limit=50) as rig:
        rig.write(1)
        rig.peer.say(HELLO, subscribe())
        await rig.settle()
        rig.peer.reading = anyio.Event()
        rig.write(1)
        await rig.settle()
        rig.write(51)
        await rig.settle()
        rig.peer.reading.set()
        await rig.over.wait()
        assert rig.failure is None
        assert rig.peer.events == [(RUN, 1), (RUN, 2)]
        assert rig.peer.frames[-1].closing.reason == "slow_consumer"


async def test_a_peer_that_takes_nothing_at_all_is_cut_off() -> None:
    async with served(unsent_limit=50) as rig:
        rig.peer.say(HELLO, subscribe(), subscribe("unknown"))
        rig.peer.reading = anyio.Event()
        rig.write(1)
        rig.peer.say(subscribe())
        await rig.settle()
        rig.write(60)
        await rig.clock.wait_for_sleepers()
        await rig.clock.advance(HEARTBEAT_MS)
        await rig.over.wait()
        assert isinstance(rig.failure, SlowConsumer)


async def test_a_burst_while_nothing_is_stuck_is_no_reason_to_close() -> None:
    async with served(unsent_limit=50) as rig:
        rig.peer.say(HELLO)
        rig.write(1)
        rig.peer.say(subscribe())
        await rig.settle()
        for _ in range(5):
            rig.write(49)
            await rig.settle()
        assert rig.peer.notes == []
        assert len(rig.peer.events) == 246


async def test_stopping_sends_what_is_ready_first() -> None:
    async with served() as rig:
        rig.write(300)
        rig.peer.say(HELLO, subscribe())
        await rig.settle()
        rig.write(10)
        rig.registry.stop()
        await rig.over.wait()
        assert len(rig.peer.events) == 310
        assert rig.peer.frames[-1].closing.reason == "shutdown"


async def test_one_stream_too_many_is_refused() -> None:
    """Specification lemon_gateway 5.3: stream cap."""
    async with served() as rig:
        late = Rig(2_000)
        late.registry = rig.registry
        await late.serve()
        assert isinstance(late.failure, TooManyStreams)
        rig.peer.hang_up()
        await rig.over.wait()
        assert rig.failure is None


async def test_a_peer_that_went_away_ends_the_stream() -> None:
    async with served() as rig:
        rig.peer.gone = True
        rig.write(1)
        rig.peer.say(HELLO, subscribe())
        await rig.over.wait()
        assert isinstance(rig.failure, PeerGone)


async def test_a_stream_that_comes_after_the_stop_is_closed_at_once() -> None:
    rig = Rig(2_000)
    rig.registry.stop()
    with anyio.fail_after(5):
        await rig.serve()
    assert rig.peer.notes == ["closing"]


# --- frames ---


def numbered(event: Event, seq: int = 1) -> Event:
    return Event(event.type, event.ts_ms, event.payload, {**event.meta, "event_seq": seq})


def packed(*events: Event, limit: int = LIMIT) -> list[Event]:
    return [
        event_from_message(message)
        for frame in pack([(RUN, event) for event in events], limit)
        for message in frame.events
    ]


def action(detail: dict[str, object] | None) -> EngineAction:
    return EngineAction(action=Action(id="a", kind="tool", title="t", detail=detail))


def test_frames_end_at_a_size_as_well() -> None:
    big = [numbered(samples.delta(RUN, n, "x" * (FRAME_BYTES // 2)), n) for n in range(1, 6)]
    frames = list(pack([(RUN, event) for event in big], LIMIT))
    assert [len(frame.events) for frame in frames] == [2, 2, 1]


def test_snapshots_and_events_keep_their_order() -> None:
    snapshot = RunSnapshot(RUN, samples.SESSION, "running", "e")
    items: list[tuple[str, StreamItem | None]] = [
        (RUN, numbered(samples.delta(RUN, 1))),
        (RUN, snapshot),
        ("run_2", None),
        (RUN, numbered(samples.delta(RUN, 2), 2)),
    ]
    kinds = [frame.WhichOneof("note") or len(frame.events) for frame in pack(items, LIMIT)]
    assert kinds == [1, "snapshot", "not_found", 1]


def test_an_event_that_is_not_json_is_repaired_so_that_no_gap_appears() -> None:
    odd = numbered(Event("engine_action", 1, action({"a": {1, 2}, "n": math.nan, "b": b"x"}), {}))
    lone = numbered(samples.delta(RUN, 1, "half \ud800"), 2)
    loop: list[object] = []
    loop.append(loop)
    meta = Event("note", 1, {"loop": loop}, {"event_seq": 3, "o": object})
    first, second, third = packed(odd, lone, meta)
    assert first.payload == action({"a": "{1, 2}", "n": None, "b": "b'x'"})
    assert isinstance(second.payload, Delta)
    assert second.payload.text == "half ?"
    assert third.payload == {"unreadable": "dict"}
    assert [event.meta["event_seq"] for event in (first, second, third)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "payload", "short"),
    [
        (
            "engine_action",
            action({"text": "x" * 3_000_000}),
            action({"truncated": True}),
        ),
        (
            "engine_completed",
            Completion(ok=True, answer="a", meta={"x": "y" * 3_000_000}),
            Completion(ok=True, answer="a"),
        ),
        (
            "run_completed",
            RunCompleted(completed=Completion(ok=True, meta={"x": "y" * 3_000_000}), duration_ms=3),
            RunCompleted(completed=Completion(ok=True), duration_ms=3),
        ),
        ("note", {"x": "y" * 3_000_000}, {"truncated": True}),
    ],
)
def test_an_event_over_the_message_limit_loses_its_free_form_parts(
    kind: str, payload: object, short: object
) -> None:
    (event,) = packed(Event(kind, 1, payload, {"event_seq": 4}), limit=2 * FRAME_BYTES)
    assert event == Event(kind, 1, short, {"event_seq": 4})


def test_a_snapshot_over_the_message_limit_loses_details() -> None:
    state = ActionState("a", "tool", "t", "started", None, {"x": "y" * 3_000_000})
    snapshot = RunSnapshot(RUN, samples.SESSION, "running", "e", actions=(state,))
    (frame,) = pack([(RUN, snapshot)], 2 * FRAME_BYTES)
    assert frame.ByteSize() < FRAME_BYTES
    assert frame.snapshot.actions[0].title == "t"


def test_an_answer_that_no_message_holds_is_told_as_not_found() -> None:
    snapshot = RunSnapshot(RUN, samples.SESSION, "running", "e", accumulated_text="x" * 3_000_000)
    (frame,) = pack([(RUN, snapshot)], 2 * FRAME_BYTES)
    assert frame == pb.RunEventFrame(not_found=pb.RunNotFound(run_id=RUN))


def test_a_snapshot_that_is_not_json_is_repaired() -> None:
    state = ActionState("a", "tool", "t", "started", None, {"odd": {1}})
    snapshot = RunSnapshot(
        RUN, samples.SESSION, "running", "e", accumulated_text="half \ud800", actions=(state,)
    )
    (frame,) = pack([(RUN, snapshot)], LIMIT)
    assert frame.snapshot.accumulated_text == "half ?"
    assert frame.snapshot.actions[0].detail_json == b'{"odd":"{1}"}'
