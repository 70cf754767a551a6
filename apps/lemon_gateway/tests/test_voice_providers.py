"""Answers and speech against servers that speak the vendors' formats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import anyio
import pytest

from lemon_core.testing import FakeClock
from lemon_gateway.tests.voice_calls import KEYS, keys_of, time_passing
from lemon_gateway.tests.voice_servers import (
    Services,
    anthropic_answer,
    openai_answer,
    running_services,
    sound_of,
)
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.providers import (
    Answers,
    Chat,
    ElevenLabs,
    Endpoints,
    SpeechStyle,
    content_of,
)
from lemon_gateway.voice.state import Turn

BOTH = {"OPENAI_API_KEY": "openai-key", "ANTHROPIC_API_KEY": "anthropic-key"}
MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


@dataclass(frozen=True, slots=True)
class Vendors:
    """The vendors and those who talk to them."""

    services: Services
    clock: FakeClock
    chat: Chat
    speech: ElevenLabs


@asynccontextmanager
async def vendors(
    section: Mapping[str, object] = KEYS,
    environ: Mapping[str, str] = BOTH,
    *,
    endpoints: Endpoints | None = None,
) -> AsyncIterator[Vendors]:
    clock = FakeClock()
    with anyio.fail_after(10):
        async with (
            running_services() as services,
            keys_of(section, clock, environ) as keys,
            aiohttp.ClientSession() as http,
        ):
            where = endpoints or services.endpoints
            style = SpeechStyle("voice/1", "ulaw_8000")
            yield Vendors(
                services,
                clock,
                Chat(http, keys, clock, where),
                ElevenLabs(http, keys, clock, where, style),
            )


@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-4.1"])
async def test_a_model_of_openai_is_asked_there(model: str) -> None:
    """Specification lemon_gateway 8: `ai.chat_completion`."""
    async with vendors() as here:
        here.services.chat_replies.append(openai_answer("Hello."))
        assert content_of(await here.chat.chat_completion(model, MESSAGES)) == "Hello."
        (seen,) = here.services.seen
        assert seen.path == "/openai/v1/chat/completions"
        assert seen.headers["Authorization"] == "Bearer openai-key"
        assert seen.body == {
            "model": model,
            "messages": list(MESSAGES),
            "max_tokens": 150,
            "temperature": 0.7,
        }


async def test_a_model_that_thinks_gets_the_limit_by_the_name_it_knows() -> None:
    """Specification lemon_gateway 8: `o1*`; it takes neither a temperature nor `max_tokens`."""
    async with vendors() as here:
        await here.chat.chat_completion("o1-mini", MESSAGES)
        body = here.services.seen[0].body
        assert body == {
            "model": "o1-mini",
            "messages": list(MESSAGES),
            "max_completion_tokens": 150,
        }


async def test_a_model_of_anthropic_is_asked_there_in_its_own_form() -> None:
    """Specification lemon_gateway 8: system lifted out, texts joined, OpenAI's form as result."""
    async with vendors() as here:
        here.services.chat_replies.append(anthropic_answer("Good ", "morning."))
        greeting = {"role": "assistant", "content": "Welcome"}
        messages = (MESSAGES[0], greeting, MESSAGES[1])
        answer = await here.chat.chat_completion("claude-haiku-4-5", messages)
        assert answer == {
            "choices": [{"message": {"role": "assistant", "content": "Good morning."}}]
        }
        (seen,) = here.services.seen
        assert seen.path == "/v1/messages"
        assert seen.headers["x-api-key"] == "anthropic-key"
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert seen.body == {
            "model": "claude-haiku-4-5",
            "system": "Be brief.",
            "messages": [MESSAGES[1]],
            "max_tokens": 150,
            "temperature": 0.7,
        }


async def test_a_model_of_nobody_is_unknown() -> None:
    """Specification lemon_gateway 8: `unknown_provider`."""
    async with vendors() as here:
        with pytest.raises(ProviderFailed, match="llama-3") as failed:
            await here.chat.chat_completion("llama-3", MESSAGES)
        assert failed.value.code == "unknown_provider"


@pytest.mark.parametrize("model", ["gpt-4o-mini", "claude-haiku-4-5"])
async def test_without_a_key_nothing_is_asked(model: str) -> None:
    """Specification lemon_gateway 8: `missing_api_key`."""
    async with vendors(environ={}) as here:
        with pytest.raises(ProviderFailed, match="_API_KEY") as failed:
            await here.chat.chat_completion(model, MESSAGES)
        assert failed.value.code == "missing_api_key"
        assert here.services.seen == []


async def test_a_refusal_has_its_status() -> None:
    """Specification lemon_gateway 8: `api_error{status}`."""
    async with vendors() as here:
        here.services.chat_replies.append(429)
        with pytest.raises(ProviderFailed) as failed:
            await here.chat.chat_completion("gpt-4o-mini", MESSAGES)
        assert (failed.value.code, failed.value.status) == ("api_error", 429)


async def test_an_answer_that_does_not_come_fails_after_thirty_seconds() -> None:
    """Specification lemon_gateway 8: 30 s."""
    async with vendors() as here:
        here.services.chat_gate = anyio.Event()
        began_ms = here.clock.monotonic_ms()
        with pytest.raises(ProviderFailed) as failed:
            async with time_passing(here.clock, 1_000):
                await here.chat.chat_completion("gpt-4o-mini", MESSAGES)
        assert failed.value.code == "request_failed"
        assert here.clock.monotonic_ms() - began_ms >= 30_000
        here.services.chat_gate.set()


async def test_a_server_that_is_not_there_is_a_failed_request() -> None:
    """Specification lemon_gateway 8: `request_failed`."""
    async with vendors(endpoints=Endpoints(openai="http://127.0.0.1:9/v1")) as here:
        with pytest.raises(ProviderFailed) as failed:
            await here.chat.chat_completion("gpt-4o-mini", MESSAGES)
        assert failed.value.code == "request_failed"


async def test_a_key_goes_to_the_base_url_that_was_set_with_it() -> None:
    """A key of the environment belongs to the environment's base URL."""
    async with running_services() as own:
        environ = {"OPENAI_API_KEY": "own-key", "OPENAI_BASE_URL": f"{own.base_url}/openai/v1"}
        async with vendors(environ=environ) as here:
            await here.chat.chat_completion("gpt-4o-mini", MESSAGES)
            assert here.services.seen == []
            assert own.seen[0].headers["Authorization"] == "Bearer own-key"


async def test_a_caller_is_answered_with_the_system_prompt_first() -> None:
    """Specification lemon_gateway 8: the system prompt and the turns."""
    async with vendors() as here:
        here.services.chat_replies.append(openai_answer("Yes."))
        turns = (Turn("user", "One?"), Turn("assistant", "One."), Turn("user", "Two?"))
        assert await Answers(here.chat, "gpt-4o-mini", "Be brief.").answer(turns) == "Yes."
        body = here.services.seen[0].body
        assert isinstance(body, dict)
        assert body["messages"] == [
            MESSAGES[0],
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "Two?"},
        ]


@pytest.mark.parametrize(
    "odd", [{}, {"choices": []}, {"choices": [7]}, {"choices": [{"message": {"content": None}}]}]
)
def test_an_answer_without_text_is_empty(odd: dict[str, object]) -> None:
    """Whatever a vendor leaves out, there is nothing to say then."""
    assert content_of(odd) == ""


async def test_words_become_sound() -> None:
    """Specification lemon_gateway 8: ElevenLabs."""
    async with vendors() as here:
        pieces: list[bytes] = []
        await here.speech.speak("Good morning", pieces.append)
        assert b"".join(pieces) == sound_of("Good morning")
        (seen,) = here.services.seen
        assert seen.path == "/v1/text-to-speech/voice/1/stream"
        assert seen.query == {"output_format": "ulaw_8000"}
        assert seen.headers["xi-api-key"] == "elevenlabs-key"
        assert seen.body == {
            "text": "Good morning",
            "model_id": "eleven_flash_v2_5",
            "voice_settings": {"stability": 0.5, "similarity_boost": 0.75},
        }


async def test_speech_that_is_refused_says_how() -> None:
    """Specification lemon_gateway 8: a failure of speech is told, not raised as anything else."""
    async with vendors() as here:
        here.services.speech_replies.append(401)
        with pytest.raises(ProviderFailed) as failed:
            await here.speech.speak("Good morning", print)
        assert (failed.value.code, failed.value.status) == ("api_error", 401)


async def test_speech_without_a_key_is_not_asked_for() -> None:
    """Specification lemon_gateway 8: a missing key is told by name."""
    async with vendors({**KEYS, "elevenlabs_api_key": None}) as here:
        with pytest.raises(ProviderFailed, match="elevenlabs_api_key") as failed:
            await here.speech.speak("Good morning", print)
        assert failed.value.code == "missing_api_key"


async def test_speech_that_does_not_come_fails_after_ten_seconds() -> None:
    """Specification lemon_gateway 8: 10 s."""
    async with vendors() as here:
        here.services.speech_gate = anyio.Event()
        began_ms = here.clock.monotonic_ms()
        with pytest.raises(ProviderFailed) as failed:
            async with time_passing(here.clock, 1_000):
                await here.speech.speak("Good morning", print)
        assert failed.value.code == "request_failed"
        assert 10_000 <= here.clock.monotonic_ms() - began_ms < 30_000
        here.services.speech_gate.set()
