"""What a call asks other services for: an answer to the caller's words, and the sound of it.

Both are single requests over the caller's connection pool, and say in one error what went wrong.
Where the services are is a matter of whoever builds these objects, never of what a call says.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import quote

from lemon_core.clock import Clock, within
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.keys import ModelKey, VoiceKeys, model_variable
from lemon_gateway.voice.state import Turn

if TYPE_CHECKING:
    from aiohttp import ClientSession

CHAT_TIMEOUT_MS: Final = 30_000
SPEECH_TIMEOUT_MS: Final = 10_000
SPEECH_MODEL: Final = "eleven_flash_v2_5"
ANTHROPIC_VERSION: Final = "2023-06-01"
MAX_ANSWER_BYTES: Final = 1024 * 1024
# Models that think first; they refuse a temperature and the older name of the limit.
_THINKING: Final = ("o1", "gpt-5")

Provider = Literal["openai", "anthropic"]
Json = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the services are."""

    deepgram: str = "wss://api.deepgram.com"
    elevenlabs: str = "https://api.elevenlabs.io"
    twilio: str = "https://api.twilio.com"
    openai: str = "https://api.openai.com/v1"
    anthropic: str = "https://api.anthropic.com"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How an answer is to be."""

    max_tokens: int = 150
    temperature: float = 0.7


class Chat:
    """Chat completions of the two vendors, in the form of OpenAI's."""

    def __init__(
        self, http: ClientSession, keys: VoiceKeys, clock: Clock, endpoints: Endpoints
    ) -> None:
        self._http, self._keys, self._clock = http, keys, clock
        self._homes: Mapping[Provider, str] = {
            "openai": endpoints.openai,
            "anthropic": endpoints.anthropic,
        }

    async def chat_completion(
        self, model: str, messages: Sequence[Json], opts: ChatOptions = ChatOptions()
    ) -> dict[str, object]:
        """`choices[0].message.content` holds the answer, at most 30 s later.

        `messages` are `{role, content}`. Raises `ProviderFailed`: `unknown_provider` for a model of
        neither vendor, `missing_api_key`, `api_error` and `request_failed`.
        """
        provider = provider_of(model)
        key = await self._keys.model(provider)
        if key is None:
            raise ProviderFailed.no_key(provider, model_variable(provider))
        url, headers, body = self._request(provider, key, model, messages, opts)
        answer = await asked(
            provider,
            self._clock,
            CHAT_TIMEOUT_MS,
            lambda: self._post(provider, url, headers, body),
        )
        return _completion(provider, answer)

    def _request(
        self,
        provider: Provider,
        key: ModelKey,
        model: str,
        messages: Sequence[Json],
        opts: ChatOptions,
    ) -> tuple[str, dict[str, str], Json]:
        base = (key.base_url or self._homes[provider]).rstrip("/")
        if provider == "openai":
            headers = {"authorization": f"Bearer {key.value}"}
            return f"{base}/chat/completions", headers, _openai_body(model, messages, opts)
        headers = {"x-api-key": key.value, "anthropic-version": ANTHROPIC_VERSION}
        url = f"{base.removesuffix('/v1')}/v1/messages"
        return url, headers, _anthropic_body(model, messages, opts)

    async def _post(
        self, provider: Provider, url: str, headers: Mapping[str, str], body: Json
    ) -> object:
        # A redirect would carry the key to another host.
        async with self._http.post(
            url, json=body, headers=headers, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise ProviderFailed.api_error(provider, answer.status)
            # What is longer is no answer of 150 tokens, and does not parse when it is cut.
            raw = bytearray()
            async for piece in answer.content.iter_any():
                raw += piece
                if len(raw) > MAX_ANSWER_BYTES:
                    break
            return json.loads(raw)


class Answers:
    """What the model says to a caller."""

    def __init__(self, chat: Chat, model: str, system_prompt: str) -> None:
        self._chat, self._model, self._system_prompt = chat, model, system_prompt

    async def answer(self, turns: Sequence[Turn]) -> str:
        """The answer to the last of `turns`; raises `ProviderFailed`."""
        messages: list[Json] = [{"role": "system", "content": self._system_prompt}]
        messages += [{"role": turn.role, "content": turn.text} for turn in turns]
        return content_of(await self._chat.chat_completion(self._model, messages))


def content_of(completion: Json) -> str:
    """The text in `choices[0].message.content`; empty when there is none."""
    choice = _first(completion.get("choices"))
    content = _mapping(choice.get("message")).get("content")
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True)
class SpeechStyle:
    """Whose voice speaks, and in what format its sound comes."""

    voice_id: str
    output_format: str


class ElevenLabs:
    """The sound of words, as it is made."""

    def __init__(
        self,
        http: ClientSession,
        keys: VoiceKeys,
        clock: Clock,
        endpoints: Endpoints,
        style: SpeechStyle,
    ) -> None:
        self._http, self._keys, self._clock = http, keys, clock
        self._base, self.style = endpoints.elevenlabs.rstrip("/"), style

    async def speak(self, text: str, take: Callable[[bytes], None]) -> None:
        """Give the sound of `text` to `take`, piece by piece, for at most 10 s.

        Raises `ProviderFailed`, also after some of it.
        """
        service = "elevenlabs"
        key = await self._keys.service("elevenlabs_api_key")
        if key is None:
            raise ProviderFailed.no_key(service, "elevenlabs_api_key")
        url = f"{self._base}/v1/text-to-speech/{quote(self.style.voice_id, safe='')}/stream"

        async def post() -> None:
            async with self._http.post(
                url,
                params={"output_format": self.style.output_format},
                headers={"xi-api-key": key},
                json={
                    "text": text,
                    "model_id": SPEECH_MODEL,
                    "voice_settings": {"stability": 0.5, "similarity_boost": 0.75},
                },
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise ProviderFailed.api_error(service, answer.status)
                async for piece in answer.content.iter_any():
                    take(piece)

        await asked(service, self._clock, SPEECH_TIMEOUT_MS, post)


async def asked(service: str, clock: Clock, timeout_ms: int, call: Callable[[], Awaitable[T]]) -> T:
    """What `call` gives within its time; how a request may fail comes out as `ProviderFailed`."""
    from aiohttp import ClientError

    try:
        return await within(clock, timeout_ms, call)
    except (ClientError, TimeoutError, OSError, ValueError) as exc:
        raise ProviderFailed.request_failed(service, exc) from exc


def provider_of(model: str) -> Provider:
    """Whose model this is; raises `ProviderFailed` `unknown_provider`."""
    if model.startswith(("gpt-", "o1")):
        return "openai"
    if model.startswith("claude-"):
        return "anthropic"
    told = f"the model {model!r} is of no provider that calls can use (gpt-*, o1*, claude-*)"
    raise ProviderFailed("unknown_provider", "chat", told)


def _openai_body(model: str, messages: Sequence[Json], opts: ChatOptions) -> Json:
    body: dict[str, object] = {"model": model, "messages": list(messages)}
    if model.startswith(_THINKING):
        return {**body, "max_completion_tokens": opts.max_tokens}
    return {**body, "max_tokens": opts.max_tokens, "temperature": opts.temperature}


def _anthropic_body(model: str, messages: Sequence[Json], opts: ChatOptions) -> Json:
    system = [str(m["content"]) for m in messages if m.get("role") == "system"]
    rest = [message for message in messages if message.get("role") != "system"]
    # A conversation begins with the user there: what comes before that is left out.
    while rest and rest[0].get("role") != "user":
        del rest[0]
    body: dict[str, object] = {"model": model, "messages": rest}
    if system:
        body["system"] = "\n\n".join(system)
    return {**body, "max_tokens": opts.max_tokens, "temperature": opts.temperature}


def _completion(provider: Provider, answer: object) -> dict[str, object]:
    """The answer in OpenAI's form, which is what OpenAI itself sends."""
    body = _mapping(answer)
    if provider == "openai":
        return dict(body)
    blocks = body.get("content")
    texts = [_mapping(block) for block in blocks] if isinstance(blocks, list) else []
    text = "".join(str(block.get("text", "")) for block in texts if block.get("type") == "text")
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def _first(value: object) -> Json:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
