"""Limits of one request of a way in: the size of its body and the time that the client takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import anyio

from lemon_core.logs import get_logger
from lemon_gateway.errors import GatewayError

MIB: Final = 1_048_576
# How much of a body nobody wants is read on, so that the client gets to read the answer.
_DISCARD_BODIES: Final = 4
_DISCARD_S: Final = 1.0
_LOGGED_PATH: Final = 200

# The forms of ASGI.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = get_logger("lemon_gateway.ingress")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost; times are from the first byte to the last."""

    body_bytes: int = MIB
    head_bytes: int = 16_384
    head_ms: int = 10_000
    body_ms: int = 20_000
    # How long a client may leave an answer unread.
    send_ms: int = 10_000
    # How long a connection is kept for a next request.
    idle_ms: int = 5_000
    connections: int = 256
    ws_message_bytes: int = 65_536


class BodyTooLarge(GatewayError):
    """A request has more body than is taken; answered as 413."""

    code = "payload_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body of a request is longer than {limit} bytes")


class BodyTooSlow(GatewayError):
    """A body did not come in time; answered as 408."""

    code = "request_timeout"

    def __init__(self, limit_ms: int) -> None:
        super().__init__(f"the body of a request was not there within {limit_ms} ms")


class Guard:
    """The ASGI app around a surface's: limits on bodies, one log line for each request.

    An app that breaks has answered 500 by then, and its traceback stands in the log.
    """

    def __init__(self, app: App, surface: str, limits: Limits) -> None:
        self._app, self._surface, self._limits = app, surface, limits

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send, self._limits)
        app = self._app if _head_bytes(scope) <= self._limits.head_bytes else _head_too_large
        began, path = monotonic(), _path_for_log(scope)
        try:
            if scope["type"] == "http":
                await app(scope, exchange.receive, exchange.send)
            else:
                await app(scope, receive, exchange.send)
        except Exception:  # of a request handler: the next request must find a server
            log.exception("ingress.failed", surface=self._surface, path=path)
        finally:
            log.info(
                "ingress.request",
                surface=self._surface,
                method=scope.get("method", "WS"),
                path=path,
                status=exchange.status,
                duration_ms=round((monotonic() - began) * 1000),
            )


class _Exchange:
    """`receive` and `send` of one request, within the limits."""

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send, limits: Limits
    ) -> None:
        self._receive, self._send, self._limits = receive, send, limits
        headers = dict(scope["headers"])
        self._announced = _number(headers.get(b"content-length", b""))
        # Whoever waits for a word before sending the body is not asked for it in vain.
        self._waits = b"expect" in headers
        self._deadline: float | None = None
        self._taken, self._whole = 0, False
        self.status: int | None = None

    async def receive(self) -> Message:
        """The next part of the body; raises `BodyTooLarge` and `BodyTooSlow`."""
        if self._whole:
            return await self._receive()
        if self._announced > self._limits.body_bytes:
            raise BodyTooLarge(self._limits.body_bytes)
        if self._deadline is None:
            self._deadline = anyio.current_time() + self._limits.body_ms / 1000
        message = await self._next_part(self._deadline)
        if self._taken > self._limits.body_bytes:
            raise BodyTooLarge(self._limits.body_bytes)
        return message

    async def send(self, message: Message) -> None:
        """Answer; the connection goes with a body that was not wanted."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not self._whole and not await self._discarded():
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif message["type"] in ("websocket.accept", "websocket.http.response.start"):
            self.status = message.get("status", 101)
        await self._send(message)

    async def _next_part(self, deadline: float) -> Message:
        with anyio.move_on_after(deadline - anyio.current_time()) as waiting:
            message = await self._receive()
        if waiting.cancelled_caught:
            raise BodyTooSlow(self._limits.body_ms)
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
        else:
            self._whole = True
        return message

    async def _discarded(self) -> bool:
        """Read on for a moment; True once the body is at its end."""
        enough = self._taken + _DISCARD_BODIES * self._limits.body_bytes
        if self._waits or self._announced > enough:
            return False
        deadline = anyio.current_time() + _DISCARD_S
        try:
            while not self._whole and self._taken <= enough:
                await self._next_part(deadline)
        except BodyTooSlow:
            return False
        return self._whole


async def _head_too_large(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Answer 431, and a WebSocket's client 403: the protocol has no other refusal for it."""
    if scope["type"] != "http":
        await send({"type": "websocket.close"})
        return
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body"})


def _head_bytes(scope: MutableMapping[str, Any]) -> int:
    """The size of a head that has arrived; the parser counts only what is not whole yet."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


def _path_for_log(scope: MutableMapping[str, Any]) -> str:
    """The path as it was sent: decoded it may hold what a terminal obeys."""
    raw: bytes = scope["raw_path"]
    return raw[:_LOGGED_PATH].decode("ascii", "replace")


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0
