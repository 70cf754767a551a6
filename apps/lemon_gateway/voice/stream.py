"""The media stream's socket: who may talk on it, which call it is, and when it ends.

Nothing is done before the token is right. It comes with the first frame that names the stream, or
in the address from a compatible service; then the call may begin before it has a name, under a
provisional sid that the first frame replaces.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger
from lemon_core.single_errors import single_errors
from lemon_gateway.voice.call import CallParts, CallSession
from lemon_gateway.voice.calls import Calls, Ticket
from lemon_gateway.voice.frames import StreamStart, parse_frame
from lemon_gateway.voice.line import LineClosed, MediaLine
from lemon_gateway.voice.state import CallLimits, CallState

ADMISSION_MS: Final = 10_000
IDLE_MS: Final = 60_000
CLOSE_MS: Final = 1_000
PROVISIONAL: Final = "temp_"

NORMAL: Final = 1_000
REFUSED: Final = 1_008

log = get_logger("lemon_gateway.voice.stream")


class Socket(Protocol):
    """An accepted WebSocket."""

    async def receive(self) -> str | None:
        """The next message's text, empty for one without; None when the socket is closed."""

    async def send(self, text: str) -> None:
        """Send a message; raises `LineClosed`."""

    async def close(self, code: int) -> None:
        """Close it, whatever its state."""


class PartsOf(Protocol):
    """Makes what a call is made of; `base_url` is how the phone service reaches this server."""

    def __call__(self, base_url: str) -> CallParts: ...


@dataclass(frozen=True, slots=True)
class _Opening:
    """An admitted stream: its ticket, what it says of itself, and its first frame if it came."""

    ticket: Ticket
    said: Mapping[str, str]
    start: StreamStart | None


class MediaStreams:
    """The media streams of one server."""

    def __init__(self, calls: Calls, parts_of: PartsOf, limits: CallLimits, clock: Clock) -> None:
        self._calls, self._parts_of, self._limits, self._clock = calls, parts_of, limits, clock

    async def serve(self, socket: Socket, query: Mapping[str, str]) -> None:
        """Talk on `socket` until either side ends the call; it is closed then."""
        code = REFUSED
        try:
            opening = await self._admitted(socket, query)
            if opening is not None:
                code = NORMAL
                await self._talk(socket, opening)
        finally:
            with anyio.CancelScope(shield=True), suppress(TimeoutError):
                await within(self._clock, CLOSE_MS, lambda: socket.close(code))

    async def _admitted(self, socket: Socket, query: Mapping[str, str]) -> _Opening | None:
        ticket = self._calls.redeem(query.get("token", ""))
        if ticket is not None:
            return _Opening(ticket, query, None)
        try:
            start = await within(self._clock, ADMISSION_MS, lambda: _first_start(socket))
        except TimeoutError:
            start = None
        if start is not None:
            ticket = self._calls.redeem(start.parameters.get("token", ""))
            if ticket is not None:
                return _Opening(ticket, start.parameters, start)
        log.warning("voice.stream_refused", reason="no valid token" if start else "no start")
        return None

    async def _talk(self, socket: Socket, opening: _Opening) -> None:
        ticket, start = opening.ticket, opening.start
        named = ticket.call_sid or opening.said.get("callSid", "")
        sid = named or (start.call_sid if start else "") or PROVISIONAL + secrets.token_hex(8)
        now_ms = self._clock.monotonic_ms()
        state = CallState(
            call_sid=sid,
            caller=ticket.caller or opening.said.get("from", ""),
            callee=ticket.callee or opening.said.get("to", ""),
            limits=self._limits,
            started_at_ms=now_ms,
        )
        if not self._calls.begin(sid, state.caller):
            log.warning("voice.stream_refused", reason="the call has a stream", call_sid=sid)
            return
        parts = self._parts_of(ticket.base_url)
        session = CallSession(state, parts, MediaLine(socket.send), self._clock)
        log.info("voice.call_started", call_sid=sid)
        try:
            with suppress(LineClosed), single_errors():
                await _Conversation(session, self._calls, self._clock).run(socket, start)
        finally:
            self._calls.end(state.call_sid)
            self._tell(session, self._clock.monotonic_ms() - now_ms)

    def _tell(self, session: CallSession, duration_ms: int) -> None:
        state, rhythm = session.state, session.rhythm
        log.info(
            "voice.call_ended",
            call_sid=state.call_sid,
            duration_ms=duration_ms,
            said_goodbye=state.leaving,
            frames_heard=session.frames_heard,
            frames_spoken=rhythm.frame_count,
            frames_late=rhythm.late_count,
            worst_late_ms=rhythm.worst_late_ms,
        )


class _Conversation:
    """An admitted stream with its call."""

    def __init__(self, session: CallSession, calls: Calls, clock: Clock) -> None:
        self._session, self._calls, self._clock = session, calls, clock
        self._heard_at_ms = clock.monotonic_ms()
        self._is_bound = False

    async def run(self, socket: Socket, start: StreamStart | None) -> None:
        """Until the call or the stream ends, or nothing comes for a minute."""
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await self._session.run()
                tasks.cancel_scope.cancel()

            async def idle() -> None:
                await self._idle()
                tasks.cancel_scope.cancel()

            tasks.start_soon(call)
            tasks.start_soon(idle)
            if start is not None:
                await self._bind(start)
            await self._read(socket)
            tasks.cancel_scope.cancel()

    async def _read(self, socket: Socket) -> None:
        while (text := await socket.receive()) is not None:
            self._heard_at_ms = self._clock.monotonic_ms()
            frame = parse_frame(text)
            if isinstance(frame, StreamStart):
                if not await self._bind(frame):
                    return
            elif frame is not None and not await self._session.take(frame):
                return

    async def _bind(self, start: StreamStart) -> bool:
        """The stream's own names; False when they are those of another call that has a stream."""
        state = self._session.state
        if self._is_bound or not start.stream_sid:
            return True
        if state.call_sid.startswith(PROVISIONAL) and start.call_sid:
            if not self._calls.begin(start.call_sid, state.caller):
                log.warning("voice.stream_refused", reason="the call has a stream")
                return False
            self._calls.end(state.call_sid)
            state.call_sid = start.call_sid
        elif start.call_sid != state.call_sid:
            log.warning("voice.sid_mismatch", call_sid=state.call_sid, stream_says=start.call_sid)
        self._is_bound = True
        return await self._session.take(start)

    async def _idle(self) -> None:
        while (left_ms := self._heard_at_ms + IDLE_MS - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep(left_ms)
        log.warning("voice.stream_idle", call_sid=self._session.state.call_sid, after_ms=IDLE_MS)


async def _first_start(socket: Socket) -> StreamStart | None:
    while (text := await socket.receive()) is not None:
        frame = parse_frame(text)
        if isinstance(frame, StreamStart):
            return frame
    return None
