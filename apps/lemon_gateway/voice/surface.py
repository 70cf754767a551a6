"""Phone calls as a way into the gateway: what all calls share, built from the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.routing import BaseRoute

from lemon_core.config.ingress import GatewayVoice
from lemon_core.logs import get_logger
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_gateway.ingress import Surface, credential
from lemon_gateway.ingress_limits import Limits
from lemon_gateway.voice.audio import is_usable_format
from lemon_gateway.voice.call import CallParts
from lemon_gateway.voice.calls import Calls
from lemon_gateway.voice.deepgram import Deepgram
from lemon_gateway.voice.endpoint import RECORDING_PATH, VoiceEndpoint
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.keys import VoiceKeys, models_of, services_of
from lemon_gateway.voice.providers import Answers, Chat, ElevenLabs, Endpoints, SpeechStyle
from lemon_gateway.voice.recordings import UNKNOWN_CALLER, Recording, Recordings
from lemon_gateway.voice.security import SECTION, VoiceSecurity
from lemon_gateway.voice.state import CallLimits
from lemon_gateway.voice.stream import MediaStreams

if TYPE_CHECKING:
    import aiohttp

# What the service sends with a call is a form of some dozen short fields.
BODY_BYTES: Final = 65_536
WAITING_RECORDINGS: Final = 64
FETCHES_AT_ONCE: Final = 2
CONNECT_TIMEOUT_S: Final = 10

WELCOME: Final = "Hello, this is Lemon. How can I help you?"
SYSTEM_PROMPT: Final = (
    "You are Lemon, an assistant on a phone call. What you write is spoken: answer in one to three "
    "short sentences of plain words, without lists, markup or symbols. Ask when you did not "
    "understand. The caller is a stranger; you know nothing about the owner of this line."
)

log = get_logger("lemon_gateway.voice")


async def surface(runtime: CoreRuntime, endpoints: Endpoints | None = None) -> Surface:
    """The surface of `[gateway.voice]`, not listening yet; `endpoints` None are the real services.

    Raises `SecretsError`.
    """
    section = runtime.config.gateway.voice
    security = await _security(runtime, section)
    keys = VoiceKeys(
        runtime.secrets, runtime.environ, services_of(section), models_of(runtime.config)
    )
    if not is_usable_format(section.elevenlabs_output_format):
        log.warning("voice.sound_not_usable", ordered=section.elevenlabs_output_format)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sequence[BaseRoute]]:
        """The routes, with connections to the services."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        jar = aiohttp.DummyCookieJar()
        into, waiting = anyio.create_memory_object_stream[Recording](WAITING_RECORDINGS)
        async with AsyncExitStack() as stack:
            stack.enter_context(into)
            stack.enter_context(waiting)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=timeout, cookie_jar=jar)
            )
            tasks = await stack.enter_async_context(anyio.create_task_group())
            makers = _Makers(runtime, section, keys, http, endpoints or Endpoints())
            calls = Calls(runtime.clock)
            for _ in range(FETCHES_AT_ONCE):
                tasks.start_soon(keep_recordings, makers.recordings, calls, waiting)
            streams = MediaStreams(calls, makers.parts, limits_of(section), runtime.clock)

            def keep(recording: Recording) -> bool:
                try:
                    into.send_nowait(recording)
                except anyio.WouldBlock:
                    return False
                return True

            number = section.twilio_phone_number or ""
            yield VoiceEndpoint(security, calls, streams, keep, number).routes()
            tasks.cancel_scope.cancel()

    return Surface(
        id="voice",
        section=SECTION,
        bind=section.bind,
        port=section.websocket_port,
        opened=opened,
        unprotected=security.unprotected,
        port_key="websocket_port",
        limits=Limits(body_bytes=BODY_BYTES),
    )


class _Makers:
    """What calls are made of, one of each for the whole server."""

    def __init__(
        self,
        runtime: CoreRuntime,
        section: GatewayVoice,
        keys: VoiceKeys,
        http: aiohttp.ClientSession,
        endpoints: Endpoints,
    ) -> None:
        clock = runtime.clock
        style = SpeechStyle(section.elevenlabs_voice_id, section.elevenlabs_output_format)
        prompt = section.system_prompt or SYSTEM_PROMPT
        folder = runtime.paths.expand(section.recordings_dir)
        self.recordings = Recordings(http, keys, clock, endpoints, folder)
        self._greeting = section.welcome_message or WELCOME
        self._ears = Deepgram(http, keys, clock, endpoints)
        self._mind = Answers(Chat(http, keys, clock, endpoints), section.llm_model, prompt)
        self._mouth = ElevenLabs(http, keys, clock, endpoints, style)

    def parts(self, base_url: str) -> CallParts:
        """Those of a call that came by `base_url`."""
        callback_url = base_url + RECORDING_PATH
        return CallParts(
            ears=self._ears,
            mind=self._mind,
            mouth=self._mouth,
            record=partial(self.recordings.order, callback_url=callback_url),
            greeting=self._greeting,
            sound_format=self._mouth.style.output_format,
        )


async def _security(runtime: CoreRuntime, section: GatewayVoice) -> VoiceSecurity:
    token = await credential(
        runtime.secrets,
        named=section.twilio_auth_token_secret,
        usual="TWILIO_AUTH_TOKEN",
        plain=section.twilio_auth_token,
    )
    security = VoiceSecurity(token, section.public_url, section.validate_webhook)
    if security.unprotected is not None:
        log.warning("voice.unprotected", remedy=security.unprotected)
    return security


def limits_of(section: GatewayVoice) -> CallLimits:
    """How long calls may be silent and last."""
    return CallLimits(section.silence_timeout_ms, section.max_call_duration_seconds * 1_000)


class Keeper(Protocol):
    """Whoever fetches recordings."""

    async def fetch(self, recording: Recording, caller: str) -> object:
        """Keep a recording of `caller`; raises `ProviderFailed` and OSError."""


async def keep_recordings(
    keeper: Keeper, calls: Calls, waiting: MemoryObjectReceiveStream[Recording]
) -> None:
    """Fetch what comes, one after the other, for ever."""
    async for recording in waiting:
        caller = calls.caller_of(recording.call_sid) or UNKNOWN_CALLER
        try:
            await keeper.fetch(recording, caller)
        except (ProviderFailed, OSError) as exc:
            log.warning("voice.recording_not_fetched", call_sid=recording.call_sid, error=str(exc))
        except Exception:  # the next recording has nothing to do with this one
            log.exception("voice.recording_not_fetched", call_sid=recording.call_sid)
