"""Whole calls: a phone, a server of calls and its services, each on a real socket."""

from __future__ import annotations

import struct

import anyio
import pytest

from lemon_gateway.tests.voice_calls import Line, phone_line
from lemon_gateway.tests.voice_servers import (
    CALL_SID,
    anthropic_answer,
    openai_answer,
    sound_of,
)
from lemon_gateway.voice.audio import pcm16_to_ulaw
from lemon_gateway.voice.state import APOLOGY, NO_KEY_APOLOGY, SILENCE_GOODBYE

HELLO = sound_of("Hello there")


@pytest.mark.behaviour("lemon_gateway.35")
async def test_a_call_is_greeted_answered_interrupted_and_said_goodbye_to() -> None:
    """Specification lemon_gateway 8: greet, transcript, reply, goodbye, hang-up; recorded."""
    with anyio.fail_after(20):
        async with phone_line() as line:
            connect = await line.phone.call()
            async with line.phone.stream(connect.url) as stream:
                await stream.start(connect.parameters)
                assert await stream.hear() == HELLO
                await stream.played()
                ordered = await line.services.asked("/Recordings.json")
                assert ordered.path.endswith(f"/Accounts/ACtests/Calls/{CALL_SID}/Recordings.json")
                words = await line.services.transcription()
                await stream.talk(b"\x01" * 160)
                assert await words.sound() == b"\x01" * 160

                line.services.chat_replies.append(openai_answer("It is sunny today."))
                await words.say("What is the", is_final=False)
                await words.say("What is the weather like?")
                assert await stream.hear() == sound_of("It is sunny today.")
                asked = await line.services.asked("/chat/completions")
                assert isinstance(asked.body, dict)
                assert asked.body["messages"][0]["role"] == "system"
                assert asked.body["messages"][1:] == [
                    {"role": "user", "content": "What is the weather like?"}
                ]

                # Not played yet: whoever talks now interrupts.
                await words.say("No", is_final=False)
                assert (await stream.next())["event"] == "clear"
                line.services.chat_replies.append(openai_answer("I see."))
                await words.say("No, tomorrow.")
                assert await stream.hear() == sound_of("I see.")
                await stream.played()

                # Frames do not tell who was first: the mark is there once this is transcribed.
                await stream.talk(b"\x02" * 160)
                assert await words.sound() == b"\x02" * 160
                await line.clock.advance(5_000)
                assert await stream.hear() == sound_of(SILENCE_GOODBYE)
                await line.clock.advance(3_000)
                await stream.closed.wait()
                assert stream.close_code == 1000
                # No sound for five seconds: the connection was kept open.
                assert await words.text() == {"type": "KeepAlive"}
                assert await words.text() == {"type": "CloseStream"}


@pytest.mark.behaviour("lemon_gateway.35")
async def test_what_the_services_refuse_is_spoken_or_skipped() -> None:
    """Specification lemon_gateway 8: failures of model and speech; the call goes on."""
    with anyio.fail_after(20):
        async with phone_line() as line:
            line.services.speech_replies.append(500)  # the greeting is skipped
            line.services.chat_replies.append(500)
            connect = await line.phone.call()
            async with line.phone.stream(connect.url) as stream:
                await stream.start(connect.parameters)
                words = await line.services.transcription()
                await line.services.asked("/stream")
                await words.say("Hello?")
                assert await stream.hear() == sound_of(APOLOGY)
                await stream.played()
                line.services.chat_replies.append(openai_answer("Here I am."))
                await words.say("Hello?")
                assert await stream.hear() == sound_of("Here I am.")
                await stream.stop()
                await stream.closed.wait()


async def test_without_a_key_for_the_model_the_caller_is_told() -> None:
    """Specification lemon_gateway 8: another apology when the key is missing."""
    with anyio.fail_after(20):
        async with phone_line(environ={"OPENAI_API_KEY": ""}) as line:
            connect = await line.phone.call()
            async with line.phone.stream(connect.url) as stream:
                await stream.start(connect.parameters)
                assert await stream.hear() == HELLO
                await stream.played()
                words = await line.services.transcription()
                await words.say("Hello?")
                assert await stream.hear() == sound_of(NO_KEY_APOLOGY)


async def test_a_call_can_be_answered_by_the_other_vendor_in_pcm() -> None:
    """Specification lemon_gateway 8: `claude-*`; 16-bit PCM becomes mu-law."""
    section = {"llm_model": "claude-haiku-4-5", "elevenlabs_output_format": "pcm_8000"}
    samples = struct.pack("<400h", *range(-200_00, 200_00, 100))
    with anyio.fail_after(20):
        async with phone_line(section, environ={"ANTHROPIC_API_KEY": "key"}) as line:
            line.services.speech_replies += [samples, samples[:320]]
            line.services.chat_replies.append(anthropic_answer("Good evening."))
            connect = await line.phone.call()
            async with line.phone.stream(connect.url) as stream:
                await stream.start(connect.parameters)
                assert await stream.hear() == pcm16_to_ulaw(samples)
                await stream.played()
                words = await line.services.transcription()
                await words.say("Good evening.")
                assert await stream.hear() == pcm16_to_ulaw(samples[:320])
                asked = await line.services.asked("/v1/messages")
                assert isinstance(asked.body, dict)
                assert asked.body["model"] == "claude-haiku-4-5"


async def test_two_calls_know_nothing_of_each_other() -> None:
    """Specification lemon_gateway 8: one session per call sid."""
    with anyio.fail_after(20):
        async with phone_line() as line:
            one, two = await line.phone.call(), await line.phone.call("+1999", "CA2")
            async with line.phone.stream(one.url) as first, line.phone.stream(two.url) as second:
                await first.start(one.parameters)
                assert await first.hear() == HELLO
                await first.played()
                words = await line.services.transcription()
                await second.start(two.parameters, call_sid="CA2", stream_sid="MZ2")
                assert await second.hear() == HELLO
                await second.played()
                line.services.chat_replies.append(openai_answer("For the first."))
                await words.say("Who is this?")
                assert await first.hear() == sound_of("For the first.")
                await second.stop()
                await second.closed.wait()
                assert not first.closed.is_set()


async def test_a_server_that_stops_hangs_up() -> None:
    """Specification lemon_gateway 8: closing the socket ends the call; nothing stays behind."""
    heard, closed = anyio.Event(), anyio.Event()

    async def listen(line: Line) -> None:
        connect = await line.phone.call()
        async with line.phone.stream(connect.url) as stream:
            await stream.start(connect.parameters)
            await stream.hear()
            heard.set()
            await stream.closed.wait()
            assert stream.close_code == 1012
        closed.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with phone_line() as line:
                tasks.start_soon(listen, line)
                await heard.wait()
            await closed.wait()
