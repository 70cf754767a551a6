"""The HTTP server that each of the gateway's own ways in stands on.

It bounds what strangers can cost: the size of head, body and WebSocket message, the time that a
client may take for each, and the number of open connections. It answers what its routes do not, and
logs each request without its query, which may hold a token. What a request means is the surface's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from lemon_core.http.server import GRACE_S, serving
from lemon_gateway.ingress_limits import BodyTooLarge, BodyTooSlow, Guard, Limits

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n"
_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n"
_CLOSE = b"connection: close\r\n\r\n"


@asynccontextmanager
async def serving_routes(
    name: str, routes: Sequence[BaseRoute], listener: socket.socket, limits: Limits
) -> AsyncIterator[int]:
    """Answer `routes` on `listener` and 404 elsewhere; yields the port.

    `name` stands in the log. At the end requests get a second before they are cancelled.
    """
    config = uvicorn.Config(
        Guard(_app(routes), name, limits),
        log_config=None,
        # uvicorn tells of each WebSocket with its query and of each bad request; `Guard` has a line
        # for what gets through to it.
        log_level="critical",
        access_log=False,
        lifespan="off",
        http=_protocol(limits),
        ws=_WebSocket,
        ws_max_size=limits.ws_message_bytes,
        h11_max_incomplete_event_size=limits.head_bytes,
        # Who really asked is for `remote_ip` and the surfaces: they need to know the peer too.
        proxy_headers=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=limits.idle_ms / 1000,  # type: ignore[arg-type]  # only added to a time
        timeout_graceful_shutdown=GRACE_S,
    )
    async with serving(config, listener) as port:
        yield port


def _app(routes: Sequence[BaseRoute]) -> Starlette:
    def answer(status: int, error: str) -> JSONResponse:
        return JSONResponse({"error": error}, status_code=status)

    async def not_found(_: Request, __: Exception) -> JSONResponse:
        return answer(404, "not found")

    async def too_large(_: Request, __: Exception) -> JSONResponse:
        return answer(413, "payload too large")

    async def too_slow(_: Request, __: Exception) -> JSONResponse:
        return answer(408, "request took too long")

    async def broken(_: Request, __: Exception) -> JSONResponse:
        return answer(500, "internal server error")

    handlers = {
        404: not_found,
        # A path that is there for another method is not there for this one.
        405: not_found,
        BodyTooLarge: too_large,
        BodyTooSlow: too_slow,
        Exception: broken,
    }
    app = Starlette(routes=list(routes), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class _WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which would leave a client waiting for ever whose head websockets does
    not take, and break when it is told to stop just after the client was."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The first data is a whole head, which h11 took; websockets has limits of its own.
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE + _CLOSE)
            self.transport.close()

    def shutdown(self) -> None:
        if self.transport.is_closing():
            self.stop_keepalive()
        else:
            super().shutdown()


def _protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol with a time limit on a request's head, and on connections a number."""

    class Bounded(H11Protocol):
        head_timer: asyncio.TimerHandle | None = None
        unread_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self._turn_away(_BUSY)
            else:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._stop_unread()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_unread()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._await_reader()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is not h11.IDLE:
                self._stop_timer()
            elif self.conn.trailing_data[0]:
                self._await_head()

        def handle_websocket_upgrade(self, event: object) -> None:
            self._stop_timer()
            super().handle_websocket_upgrade(event)  # type: ignore[arg-type]  # handed through

        def _await_head(self) -> None:
            if self.head_timer is None:
                self.head_timer = self.loop.call_later(limits.head_ms / 1000, self._too_slow)

        def _stop_timer(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

        def _too_slow(self) -> None:
            self._turn_away(_SLOW)

        def _turn_away(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer + _CLOSE)
                self.transport.close()
            self._await_reader()

        def _await_reader(self) -> None:
            # A closed connection stays for as long as its client leaves something unread.
            if self.unread_timer is None:
                self.unread_timer = self.loop.call_later(
                    limits.send_ms / 1000, self.transport.abort
                )

        def _stop_unread(self) -> None:
            if self.unread_timer is not None:
                self.unread_timer.cancel()
                self.unread_timer = None

    return Bounded


def peer_is_local(connection: HTTPConnection) -> bool:
    """Whether the connection comes from this machine: a proxy's headers count only then."""
    address = None if connection.client is None else _address(connection.client.host)
    return address is not None and address.is_loopback


def remote_ip(connection: HTTPConnection) -> str:
    """The address of whoever asks; behind a proxy on this machine, what that says it is."""
    if connection.client is None:
        return ""
    if peer_is_local(connection):
        # The last one is what the proxy itself saw, the others are hearsay.
        forwarded = connection.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        if (address := _address(forwarded)) is not None:
            return str(address)
    return str(_address(connection.client.host) or connection.client.host)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address; an older one that came in on a socket of the newer kind as the older one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
