"""The way to the caller's ear: messages in order, kept until the stream has a name, at their pace.

Twilio plays what it gets at once and in order, keeps what is early, and drops that when it is told
to. Frames are therefore sent a second ahead of the moment at which they are heard: a loop that is
busy for less than that is not heard, and what an interruption has to drop stays little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_gateway.voice.audio import FRAME_MS
from lemon_gateway.voice.frames import clear_message, mark_message, media_message

LEAD_MS: Final = 1_000
WAITING_FRAMES: Final = 30_000 // FRAME_MS

log = get_logger("lemon_gateway.voice.line")


class LineClosed(Exception):
    """The other end of the media stream is gone."""


class MediaLine:
    """One media stream towards the caller.

    `send` raises `LineClosed`. Until `bind` tells the stream's name, up to 30 s of sound and the
    marks in it wait; more sound is dropped.
    """

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self._send = send
        self._stream_sid = ""
        self._waiting: deque[bytes | str] = deque()
        self._dropped = 0
        # Held across sends: what waited must be out before anything that comes later.
        self._order = anyio.Lock()

    async def bind(self, stream_sid: str) -> None:
        """The stream is called `stream_sid`: send what has waited for that."""
        async with self._order:
            self._stream_sid = stream_sid
            while self._waiting:
                await self._put(self._waiting.popleft())

    async def frame(self, sound: bytes) -> None:
        """Send a frame of sound."""
        await self._put_or_keep(sound)

    async def mark(self, name: str) -> None:
        """Send a mark, which comes back when everything before it has been played."""
        await self._put_or_keep(name)

    async def clear(self) -> None:
        """Drop what was not played yet, here and at the other end."""
        async with self._order:
            self._waiting.clear()
            if self._stream_sid:
                await self._send(clear_message(self._stream_sid))

    async def _put_or_keep(self, item: bytes | str) -> None:
        async with self._order:
            if self._stream_sid:
                await self._put(item)
            elif isinstance(item, str) or len(self._waiting) < WAITING_FRAMES:
                self._waiting.append(item)
            else:
                self._dropped += 1
                if self._dropped == 1:
                    log.warning("voice.sound_dropped", reason="the stream has no name yet")

    async def _put(self, item: bytes | str) -> None:
        if isinstance(item, str):
            await self._send(mark_message(self._stream_sid, item))
        else:
            await self._send(media_message(self._stream_sid, item))


class Rhythm:
    """When the frames of one call are sent, and how well that went.

    A frame is late when it is sent after the moment at which it should be heard: the caller hears a
    gap, and the frames behind it are heard that much later.
    """

    def __init__(self, clock: Clock, lead_ms: int = LEAD_MS) -> None:
        self._clock, self._lead_ms = clock, lead_ms
        self._heard_at_ms = 0
        self.frame_count = 0
        self.late_count = 0
        self.worst_late_ms = 0

    @property
    def ends_at_ms(self) -> int:
        """When the last frame that was sent has been heard."""
        return self._heard_at_ms

    def begin(self) -> None:
        """An utterance begins: its first frame is heard at once."""
        self._heard_at_ms = self._clock.monotonic_ms()

    async def wait(self) -> None:
        """Return when the next frame is due."""
        ahead_ms = self._heard_at_ms - self._clock.monotonic_ms()
        if ahead_ms > self._lead_ms:
            await self._clock.sleep(ahead_ms - self._lead_ms)
        elif ahead_ms < 0:
            self.late_count += 1
            self.worst_late_ms = max(self.worst_late_ms, -ahead_ms)
            self._heard_at_ms -= ahead_ms
        self.frame_count += 1
        self._heard_at_ms += FRAME_MS
