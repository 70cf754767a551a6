"""Transcription against a server that speaks Deepgram's format."""

from __future__ import annotations

import json
from asyncio import Queue
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import anyio
import pytest
from anyio.streams.memory import MemoryObjectSendStream

from lemon_core.testing import FakeClock
from lemon_gateway.tests.voice_calls import KEYS, keys_of, time_passing
from lemon_gateway.tests.voice_servers import Services, running_services
from lemon_gateway.voice.deepgram import RECONNECTS, Deepgram, parse_result
from lemon_gateway.voice.errors import ProviderFailed

FRAME = b"\x7f" * 160


@dataclass
class Listening:
    """A call that is transcribed."""

    services: Services
    clock: FakeClock
    sound: MemoryObjectSendStream[bytes]
    heard: Queue[tuple[str, bool]] = field(default_factory=Queue)
    ended: anyio.Event = field(default_factory=anyio.Event)
    failure: ProviderFailed | None = None


@asynccontextmanager
async def listening(
    section: Mapping[str, object] = KEYS, *, handshake_status: int | None = None
) -> AsyncIterator[Listening]:
    clock = FakeClock()
    into, sound = anyio.create_memory_object_stream[bytes](100)
    with anyio.fail_after(10), into, sound:
        async with (
            running_services() as services,
            keys_of(section, clock) as keys,
            aiohttp.ClientSession() as http,
            anyio.create_task_group() as tasks,
        ):
            services.handshake_status = handshake_status
            call = Listening(services, clock, into)

            async def transcribe() -> None:
                try:
                    await Deepgram(http, keys, clock, services.endpoints).transcribe(
                        sound, lambda words, is_final: call.heard.put_nowait((words, is_final))
                    )
                except ProviderFailed as exc:
                    call.failure = exc
                call.ended.set()

            tasks.start_soon(transcribe)
            yield call
            tasks.cancel_scope.cancel()


async def test_sound_goes_out_and_words_come_back() -> None:
    """Specification lemon_gateway 8: address, key, binary frames, interim and final results."""
    async with listening() as call:
        words = await call.services.transcription()
        assert words.headers["Authorization"] == "Token deepgram-key"
        assert words.query == {
            "encoding": "mulaw",
            "sample_rate": "8000",
            "channels": "1",
            "model": "nova-3",
            "interim_results": "true",
            "punctuate": "true",
            "smart_format": "true",
            "filler_words": "false",
            "profanity_filter": "false",
        }
        call.sound.send_nowait(FRAME)
        assert await words.sound() == FRAME
        await words.say("hel", is_final=False)
        await words.say("hello")
        assert await call.heard.get() == ("hel", False)
        assert await call.heard.get() == ("hello", True)


async def test_the_end_of_the_sound_closes_the_stream_in_due_form() -> None:
    """Specification lemon_gateway 8: `CloseStream` at the end."""
    async with listening() as call:
        words = await call.services.transcription()
        call.sound.close()
        assert await words.text() == {"type": "CloseStream"}
        await words.closed.wait()
        await call.ended.wait()
        assert call.failure is None


async def test_a_silent_connection_is_kept_open_and_a_busy_one_left_alone() -> None:
    """Specification lemon_gateway 8: `KeepAlive` every 5 s while no sound flows."""
    async with listening() as call:
        words = await call.services.transcription()
        # One sleeper: whoever waits for the next word that the connection lives.
        await call.clock.wait_for_sleepers()
        await call.clock.advance(4_000)
        call.sound.send_nowait(FRAME)
        await words.sound()
        await call.clock.advance(4_999)
        await words.send({"type": "Metadata"})
        await call.clock.advance(1)
        assert await words.text() == {"type": "KeepAlive"}
        await call.clock.advance(5_000)
        assert await words.text() == {"type": "KeepAlive"}
        call.sound.close()
        assert await words.text() == {"type": "CloseStream"}


async def test_a_connection_that_breaks_is_made_anew_three_times_in_a_call() -> None:
    """Specification lemon_gateway 8: reconnect up to 3 times."""
    async with listening() as call:
        for number in range(RECONNECTS + 1):
            # Sound goes on meanwhile, and is not lost.
            call.sound.send_nowait(FRAME)
            async with time_passing(call.clock):
                words = await call.services.transcription()
            assert await words.sound() == FRAME
            await words.say(f"part {number}")
            assert await call.heard.get() == (f"part {number}", True)
            await words.drop()
            await words.closed.wait()
        async with time_passing(call.clock):
            await call.ended.wait()
        assert call.failure is not None
        assert call.failure.code == "request_failed"


async def test_a_service_that_refuses_is_given_up_after_the_same_number() -> None:
    """Specification lemon_gateway 8: the end of trying is told."""
    async with listening(handshake_status=401) as call:
        async with time_passing(call.clock):
            await call.ended.wait()
        assert call.failure is not None
        assert call.failure.code == "request_failed"


async def test_without_a_key_nothing_is_tried() -> None:
    """Specification lemon_gateway 8: a missing key is told by name."""
    async with listening({**KEYS, "deepgram_api_key": None}) as call:
        await call.ended.wait()
        assert call.failure is not None
        assert call.failure.code == "missing_api_key"
        assert "deepgram_api_key" in str(call.failure)


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ({"type": "Results", "is_final": True}, ("words", True)),
        ({"type": "Results", "is_final": False}, ("words", False)),
        ({"type": "Results"}, ("words", False)),
        ({"type": "Final"}, ("words", True)),
        ({"type": "Metadata"}, None),
        ({"type": "UtteranceEnd"}, None),
        ({"type": "SpeechStarted"}, None),
        ({"type": "SomethingNew"}, None),
    ],
)
def test_results_are_words_and_other_types_nothing(
    message: dict[str, object], result: tuple[str, bool] | None
) -> None:
    """Specification lemon_gateway 8: `Final` is a final result, unknown types are ignored."""
    channel = {"alternatives": [{"transcript": "words"}]}
    assert parse_result(json.dumps({**message, "channel": channel})) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"type": "Results"}',
        '{"type": "Results", "channel": {"alternatives": []}}',
        '{"type": "Results", "channel": {"alternatives": [{"transcript": 7}]}}',
        "[" * 100_000,
    ],
)
def test_a_message_that_cannot_be_read_is_nothing(text: str) -> None:
    """A service's odd answer does not end a call."""
    assert parse_result(text) is None
