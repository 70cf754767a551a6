"""The way to the caller's ear: order, what waits for the stream's name, and the rhythm."""

from __future__ import annotations

import json

import anyio
import pytest

from lemon_core.testing import FakeClock
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.voice_servers import payload_of
from lemon_gateway.voice.line import LEAD_MS, WAITING_FRAMES, LineClosed, MediaLine, Rhythm

FRAME = b"\x07" * 160


class Wire:
    """What was sent, as events; `broken` makes it refuse."""

    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []
        self.broken = False

    async def send(self, text: str) -> None:
        if self.broken:
            raise LineClosed
        self.sent.append(json.loads(text))

    @property
    def events(self) -> list[object]:
        return [message["event"] for message in self.sent]


async def test_what_comes_before_the_streams_name_waits_for_it_in_order() -> None:
    """Specification lemon_gateway 8: nothing is sent before `streamSid` is known."""
    wire = Wire()
    line = MediaLine(wire.send)
    await line.frame(FRAME)
    await line.mark("m")
    assert wire.sent == []
    await line.bind("MZ1")
    await line.frame(b"\x08")
    assert wire.events == ["media", "mark", "media"]
    assert {message["streamSid"] for message in wire.sent} == {"MZ1"}
    assert payload_of(wire.sent[0]) == FRAME


async def test_no_more_than_thirty_seconds_of_sound_wait() -> None:
    """Specification lemon_gateway 8: buffered up to 30 s."""
    wire = Wire()
    line = MediaLine(wire.send)
    for _ in range(WAITING_FRAMES + 100):
        await line.frame(FRAME)
    await line.mark("m")
    await line.bind("MZ1")
    assert wire.events == ["media"] * 1_500 + ["mark"]


async def test_a_clear_drops_what_waits_and_tells_a_stream_that_is_there() -> None:
    """Specification lemon_gateway 8: an interruption before and after the stream has a name."""
    wire = Wire()
    line = MediaLine(wire.send)
    await line.frame(FRAME)
    await line.clear()
    await line.bind("MZ1")
    await line.clear()
    assert wire.events == ["clear"]


async def test_a_line_that_is_gone_says_so() -> None:
    """The caller of a line decides what a broken one means."""
    wire = Wire()
    line = MediaLine(wire.send)
    await line.bind("MZ1")
    wire.broken = True
    with pytest.raises(LineClosed):
        await line.frame(FRAME)


async def test_frames_go_out_at_their_pace_a_little_ahead() -> None:
    """20 ms for each frame, as many at once as the lead has room for."""
    clock, sent = FakeClock(), 0
    rhythm = Rhythm(clock)

    async def send() -> None:
        nonlocal sent
        rhythm.begin()
        for _ in range(100):
            await rhythm.wait()
            sent += 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await settle()
            ahead = LEAD_MS // 20 + 1
            assert sent == ahead
            for number in range(1, 20):
                await clock.advance(20)
                assert sent == ahead + number
            await clock.advance(2_000)
    assert (rhythm.frame_count, rhythm.late_count) == (100, 0)


async def test_a_frame_after_its_moment_is_late_and_moves_those_behind_it() -> None:
    """What the caller hears is a gap, not a rush."""
    clock = FakeClock()
    rhythm = Rhythm(clock, lead_ms=0)
    rhythm.begin()
    began_ms = clock.monotonic_ms()
    await rhythm.wait()
    await clock.advance(70)
    await rhythm.wait()
    assert (rhythm.late_count, rhythm.worst_late_ms) == (1, 50)
    assert rhythm.ends_at_ms == began_ms + 90
