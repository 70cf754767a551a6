"""What happens in a call: its line, failures of its services, and its ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import anyio
import pytest

from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.voice_calls import time_passing
from lemon_gateway.tests.voice_parts import (
    FAILED,
    PAYLOAD,
    TICKET,
    Ears,
    Mind,
    Mouth,
    Parts,
    mark,
    serving,
    start,
)
from lemon_gateway.tests.voice_servers import payload_of, sound_of
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.state import (
    APOLOGY,
    LIMIT_GOODBYE,
    NO_KEY_APOLOGY,
    SILENCE_GOODBYE,
    CallLimits,
)
from lemon_gateway.voice.stream import IDLE_MS

FRAME = b"\x05" * 160


@pytest.mark.behaviour("lemon_gateway.34")
async def test_frames_that_mean_nothing_do_not_end_a_call() -> None:
    """Specification lemon_gateway 13, row 34: bad JSON and bad base64 survive."""
    async with serving() as line:
        await line.open()
        for text in (
            "{",
            "",
            '{"event": "media", "media": {"payload": "***"}}',
            '{"event": "media", "media": {"payload": "BQUF", "track": "outbound"}}',
            '{"event": "dtmf", "dtmf": {"digit": "5"}}',
            '{"event": "what"}',
        ):
            line.socket.put(text)
        line.socket.put({"event": "media", "media": {"payload": PAYLOAD}})
        with anyio.fail_after(5):
            assert await line.parts.ears.sound.get() == b"\x05\x05\x05"
        assert line.parts.ears.sound.empty()
        assert not line.ended.is_set()


@pytest.mark.behaviour("lemon_gateway.34")
async def test_a_mark_lets_the_next_reply_be_spoken() -> None:
    """Specification lemon_gateway 13, row 34: mark advances the queue."""
    async with serving(
        Parts(
            mind=Mind(
                answers=deque(
                    (
                        "One",
                        "Two",
                    )
                )
            )
        )
    ) as line:
        await line.open()
        line.parts.ears.say("a")
        assert await line.socket.hear() == (sound_of("One"), "utterance-2")
        line.parts.ears.say("b")
        await settle()
        assert line.socket.outbox.empty()
        line.socket.put(mark("utterance-2"))
        assert await line.socket.hear() == (sound_of("Two"), "utterance-3")


@pytest.mark.behaviour("lemon_gateway.34")
async def test_an_interruption_clears_the_line_and_nothing_of_it_follows() -> None:
    """Specification lemon_gateway 13, row 34: `clear`; what was not sent yet is not sent."""
    long = " ".join(["word"] * 100)  # two seconds, more than goes out ahead
    async with serving(
        Parts(
            mind=Mind(
                answers=deque(
                    (
                        long,
                        "Sure.",
                    )
                )
            )
        )
    ) as line:
        await line.open()
        line.parts.ears.say("Tell me a story.")
        assert payload_of(await line.socket.next()) == sound_of("word")
        line.parts.ears.say("Stop", is_final=False)
        while (message := await line.socket.next())["event"] == "media":
            assert payload_of(message) == sound_of("word")
        assert message == {"event": "clear", "streamSid": "MZ1"}
        await line.clock.advance(2_500)
        assert line.socket.outbox.empty()
        line.parts.ears.say("Stop, please.")
        assert await line.socket.hear() == (sound_of("Sure."), "utterance-3")


async def test_words_that_interrupt_after_all_was_sent_clear_what_is_not_played() -> None:
    """Specification lemon_gateway 8: the call speaks until the mark comes back."""
    async with serving() as line:
        await line.open()
        line.parts.ears.say("a")
        await line.socket.hear()
        line.parts.ears.say("wait", is_final=False)
        assert await line.socket.next() == {"event": "clear", "streamSid": "MZ1"}


async def test_an_interruption_while_speech_is_made_leaves_nothing_of_it() -> None:
    """Specification lemon_gateway 8: also before its first frame."""
    async with serving() as line:
        await line.open()
        line.parts.mouth.gate = anyio.Event()
        line.parts.ears.say("a")
        await settle()
        line.parts.ears.say("wait", is_final=False)
        line.parts.mouth.gate.set()
        assert await line.socket.next() == {"event": "clear", "streamSid": "MZ1"}
        await settle()
        assert line.socket.outbox.empty()


async def test_sound_is_sent_at_its_pace() -> None:
    """Frames of 20 ms, little ahead of the moment at which they are heard."""
    async with serving() as line:
        await line.open()
        line.parts.mouth.sound = lambda _: FRAME * 100
        line.parts.ears.say("a")
        while line.clock.sleepers < 3:  # the look at the time, the idle limit, and the next frame
            await settle()
        ahead = line.socket.outbox.qsize()
        assert ahead < 60
        await line.clock.advance(1_000)
        assert line.socket.outbox.qsize() == ahead + 50


async def test_more_sound_than_the_transcription_takes_drops_the_oldest() -> None:
    """Sound of a call is bounded; the newest is worth the most."""
    gate = anyio.Event()
    async with serving(Parts(ears=Ears(gate=gate))) as line:
        await line.open()
        for number in range(600):
            payload = f"{number % 256:02x}".encode().hex()
            line.socket.put({"event": "media", "media": {"payload": payload}})
        await settle()
        while line.socket.inbox.qsize():
            await settle()
        gate.set()
        await settle()
        while line.parts.ears.sound.qsize() < 500:
            await settle()
        assert line.parts.ears.sound.qsize() == 500


# --- failures ---


@pytest.mark.behaviour("lemon_gateway.35")
@pytest.mark.parametrize(
    ("failure", "apology"),
    [
        (FAILED, APOLOGY),
        (RuntimeError("a fault"), APOLOGY),
        (ProviderFailed.no_key("openai", "OPENAI_API_KEY"), NO_KEY_APOLOGY),
    ],
)
async def test_a_model_that_fails_is_apologised_for(failure: Exception, apology: str) -> None:
    """Specification lemon_gateway 8: the call goes on."""
    async with serving(
        Parts(
            mind=Mind(
                answers=deque(
                    (
                        failure,
                        "Better.",
                    )
                )
            )
        )
    ) as line:
        await line.open()
        line.parts.ears.say("a")
        assert await line.socket.hear() == (sound_of(apology), "utterance-2")
        line.socket.put(mark("utterance-2"))
        line.parts.ears.say("b")
        assert await line.socket.hear() == (sound_of("Better."), "utterance-3")


@pytest.mark.behaviour("lemon_gateway.35")
@pytest.mark.parametrize("failure", [FAILED, RuntimeError("a fault")])
async def test_speech_that_fails_is_passed_over(failure: Exception) -> None:
    """Specification lemon_gateway 8: TTS failure moves on."""
    parts = Parts(mouth=Mouth(failures=deque(((0, failure),))))
    async with serving(parts) as line:
        line.socket.put(start(token=line.calls.admit(TICKET)))
        await line.parts.ears.listening.wait()
        await settle()
        line.parts.ears.say("a")
        assert await line.socket.hear() == (sound_of("Fine."), "utterance-2")


async def test_speech_that_breaks_off_is_heard_as_far_as_it_came() -> None:
    """Half a sentence and then the next one, not silence."""
    parts = Parts(mouth=Mouth(failures=deque(((200, FAILED),))))
    async with serving(parts) as line:
        line.socket.put(start(token=line.calls.admit(TICKET)))
        assert await line.socket.hear() == (sound_of("Hello there")[:200], "utterance-1")


async def test_sound_that_cannot_be_converted_is_passed_over() -> None:
    """Specification lemon_gateway 8: MP3 is not converted: warn and skip."""
    parts = Parts(sound_format="mp3_44100_128", mouth=Mouth(sound=lambda _: b"ID3" + bytes(999)))
    async with serving(parts) as line:
        line.socket.put(start(token=line.calls.admit(TICKET)))
        await line.parts.ears.listening.wait()
        await settle()
        assert line.socket.outbox.empty()
        line.parts.ears.say("a")
        await settle()
        assert line.parts.mouth.spoken == ["Hello there", "Fine."]


async def test_a_line_that_is_gone_drops_the_sound_and_moves_on() -> None:
    """Specification lemon_gateway 8: missing socket drops the audio and still moves on."""
    async with serving() as line:
        await line.open()
        line.socket.is_broken = True
        for words in ("a", "b"):
            line.parts.ears.say(words)
            await settle()
        assert line.parts.mouth.spoken == ["Hello there", "Fine.", "Fine."]
        assert not line.ended.is_set()


async def test_a_call_without_transcription_or_recording_still_talks() -> None:
    """One service that fails does not end a call."""
    parts = Parts(ears=Ears(failure=FAILED), record_failure=RuntimeError("a fault"))
    async with serving(parts) as line:
        await line.open()
        line.socket.put({"event": "media", "media": {"payload": PAYLOAD}})
        await settle()
        assert not line.ended.is_set()


# --- ends ---


@pytest.mark.behaviour("lemon_gateway.35")
async def test_silence_is_said_goodbye_to_and_the_line_closed_three_seconds_later() -> None:
    """Specification lemon_gateway 8: checked every 5 s; raw sound is no speech."""
    async with serving() as line:
        await line.open()
        line.socket.put({"event": "media", "media": {"payload": PAYLOAD}})
        await line.clock.advance(5_000)
        assert await line.socket.hear() == (sound_of(SILENCE_GOODBYE), "utterance-2")
        await line.clock.advance(2_999)
        assert not line.ended.is_set()
        await line.clock.advance(1)
        await line.ended.wait()
        assert line.socket.close_code == 1000
        assert line.calls.live == frozenset()


@pytest.mark.behaviour("lemon_gateway.35")
async def test_a_call_over_its_length_is_said_goodbye_to() -> None:
    """Specification lemon_gateway 8: older than `max_call_duration_seconds`."""
    async with serving(limits=CallLimits(5_000, 12_000)) as line:
        await line.open()
        line.parts.mind.gate = anyio.Event()
        line.parts.ears.say("Think about this.")
        await line.clock.advance(10_000)
        assert line.socket.outbox.empty()
        await line.clock.advance(5_000)
        assert await line.socket.hear() == (sound_of(LIMIT_GOODBYE), "utterance-2")
        await line.clock.advance(3_000)
        await line.ended.wait()


@pytest.mark.behaviour("lemon_gateway.35")
@pytest.mark.parametrize("end", [{"event": "stop", "stop": {"callSid": "CA1"}}, None])
async def test_a_hang_up_ends_the_call(end: Mapping[str, object] | None) -> None:
    """Specification lemon_gateway 8: `stop`, and a socket that closes."""
    async with serving() as line:
        await line.open()
        line.socket.put(end)
        await line.ended.wait()
        assert line.calls.live == frozenset()
        assert line.calls.caller_of("CA1") == "+15551230001"


async def test_a_stream_on_which_nothing_comes_is_closed_after_a_minute() -> None:
    """Specification lemon_gateway 8: 60 s idle limit; each frame begins it anew."""
    # A model that thinks for ever: no silence, no goodbye.
    async with serving(Parts(mind=Mind(gate=anyio.Event()))) as line:
        await line.open()
        line.parts.ears.say("a")
        await line.clock.advance(IDLE_MS - 1_000)
        line.socket.put('{"event": "what"}')
        await settle()
        await line.clock.advance(IDLE_MS - 1)
        assert not line.ended.is_set()
        async with time_passing(line.clock, 1):
            await line.ended.wait()
