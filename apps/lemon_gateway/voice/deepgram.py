"""Words from sound: Deepgram's live transcription over a WebSocket.

The sound of a call goes out in binary frames as it comes; the service sends interim and final
results. It closes a connection that is silent for ten seconds, so a text frame says every five that
this one lives. Source: Deepgram's "Live streaming", "KeepAlive" and "CloseStream".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger
from lemon_core.single_errors import single_errors
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.keys import VoiceKeys
from lemon_gateway.voice.providers import Endpoints

if TYPE_CHECKING:
    from aiohttp import ClientSession, ClientWebSocketResponse

KEEP_ALIVE_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_MS: Final = 1_000
RECONNECTS: Final = 3
RECONNECT_DELAY_MS: Final = 200
QUERY: Final[Mapping[str, str]] = {
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
KEEP_ALIVE: Final = '{"type":"KeepAlive"}'
CLOSE_STREAM: Final = '{"type":"CloseStream"}'

Heard = Callable[[str, bool], None]
"""Takes the words, and whether they are final."""

log = get_logger("lemon_gateway.voice.deepgram")


class Deepgram:
    """Transcribes calls, one `transcribe` for each."""

    def __init__(
        self, http: ClientSession, keys: VoiceKeys, clock: Clock, endpoints: Endpoints
    ) -> None:
        self._http, self._keys, self._clock = http, keys, clock
        self._url = f"{endpoints.deepgram.rstrip('/')}/v1/listen?{urlencode(QUERY)}"

    async def transcribe(self, sound: MemoryObjectReceiveStream[bytes], heard: Heard) -> None:
        """Give `heard` what is said in `sound`, until that ends.

        A connection that breaks is made anew, three times in a call. Raises `ProviderFailed` after
        that, and without a key.
        """
        key = await self._keys.service("deepgram_api_key")
        if key is None:
            raise ProviderFailed.no_key("deepgram", "deepgram_api_key")
        reconnects = 0
        while (failure := await self._connected(key, sound, heard)) is not None:
            log.warning("voice.transcription_cut", reconnects=reconnects, error=str(failure))
            if reconnects == RECONNECTS:
                raise failure
            reconnects += 1
            await self._clock.sleep(RECONNECT_DELAY_MS * reconnects)

    async def _connected(
        self, key: str, sound: MemoryObjectReceiveStream[bytes], heard: Heard
    ) -> ProviderFailed | None:
        """One connection, to the end of `sound` (None) or to its own."""
        from aiohttp import ClientError

        try:
            socket = await within(
                self._clock,
                CONNECT_TIMEOUT_MS,
                lambda: self._http.ws_connect(
                    self._url, headers={"authorization": f"Token {key}"}, max_msg_size=1024 * 1024
                ),
            )
        except (ClientError, TimeoutError, OSError, ValueError) as exc:
            return ProviderFailed.request_failed("deepgram", exc)
        try:
            with single_errors():
                return await _Connection(socket, self._clock).run(sound, heard)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(socket)

    async def _close(self, socket: ClientWebSocketResponse) -> None:
        """Say goodbye, briefly; the connection is gone either way."""

        async def goodbye() -> None:
            if not socket.closed:
                await socket.send_str(CLOSE_STREAM)
            await socket.close()

        try:
            await within(self._clock, CLOSE_TIMEOUT_MS, goodbye)
        except (ConnectionError, TimeoutError, RuntimeError) as exc:
            log.info("voice.transcription_not_closed", error=type(exc).__name__)


class _Connection:
    """One open socket with what is sent, what keeps it open, and what comes."""

    def __init__(self, socket: ClientWebSocketResponse, clock: Clock) -> None:
        self._socket, self._clock = socket, clock
        self._sent_at_ms = clock.monotonic_ms()
        self._ended = False

    async def run(
        self, sound: MemoryObjectReceiveStream[bytes], heard: Heard
    ) -> ProviderFailed | None:
        """Until the sound ends (None) or the connection does."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._to_its_end, partial(self._send, sound), tasks)
            tasks.start_soon(self._to_its_end, self._keep_alive, tasks)
            await self._receive(heard)
            tasks.cancel_scope.cancel()
        if self._ended:
            return None
        told = f"closed the connection ({self._socket.close_code})"
        return ProviderFailed("request_failed", "deepgram", told)

    async def _to_its_end(self, send: Callable[[], Awaitable[None]], tasks: TaskGroup) -> None:
        """Send until there is nothing more to send, or nobody to send it to."""
        # ConnectionError covers what aiohttp raises for a connection that is closing.
        with suppress(ConnectionError):
            await send()
        tasks.cancel_scope.cancel()

    async def _send(self, sound: MemoryObjectReceiveStream[bytes]) -> None:
        async for frame in sound:
            await self._socket.send_bytes(frame)
            self._sent_at_ms = self._clock.monotonic_ms()
        self._ended = True

    async def _keep_alive(self) -> None:
        while True:
            wait_ms = self._sent_at_ms + KEEP_ALIVE_MS - self._clock.monotonic_ms()
            if wait_ms > 0:
                await self._clock.sleep(wait_ms)
            else:
                await self._socket.send_str(KEEP_ALIVE)
                self._sent_at_ms = self._clock.monotonic_ms()

    async def _receive(self, heard: Heard) -> None:
        from aiohttp import WSMsgType

        async for message in self._socket:
            if message.type is WSMsgType.TEXT and (found := parse_result(message.data)):
                heard(*found)


def parse_result(text: str) -> tuple[str, bool] | None:
    """The words of a message and whether they are final; None for any other message, and for what
    cannot be read."""
    try:
        message = json.loads(text)
        kind = message["type"]
        if kind not in ("Results", "Final"):
            return None
        words = message["channel"]["alternatives"][0]["transcript"]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError):
        return None
    if not isinstance(words, str):
        return None
    return words, kind == "Final" or message.get("is_final") is True
