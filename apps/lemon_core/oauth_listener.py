"""Catches the browser on its way back from a sign-in: one request on a loopback address.

The listener answers until one request matches (the path of the redirect URI, with a `code` or an
`error`), then stops. It trusts nobody: any page in the same browser can send requests here, so the
caller still compares `state`, and a connection that says nothing, or too much, is dropped.
"""

from __future__ import annotations

import errno
import html
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.abc

from lemon_core.clock import Clock
from lemon_core.errors import LemonError

if TYPE_CHECKING:
    import h11

REQUEST_MAX_BYTES: Final = 16 * 1_024
READ_TIMEOUT_MS: Final = 5_000

_HOSTS: Final = ("localhost", "127.0.0.1")
_MAX_PARAMETERS: Final = 50
_SHOWN_CHARS: Final = 300
_DRAIN_READS: Final = 16
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Connection", "close"),
)


class OAuthListenerError(LemonError):
    """The listener cannot be opened for this redirect URI; the message says why."""

    code = "oauth_listener_failed"


@dataclass(frozen=True, slots=True)
class RedirectUri:
    """A loopback redirect URI in its parts; port 0 means any free one."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"


def parse_redirect_uri(text: str) -> RedirectUri:
    """`http://localhost|127.0.0.1:<port>/<path>`; raises `OAuthListenerError` for all else."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise _refused(text) from exc
    plain = f"http://{parts.hostname}:{port}{parts.path}"
    # Whatever the parser passed over (a user, a query, another spelling) makes a difference.
    if plain != text or parts.hostname not in _HOSTS or port is None or parts.path[:1] != "/":
        raise _refused(text)
    return RedirectUri(parts.hostname, port, parts.path)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response; with `parameters` it is the one that was waited for."""

    status: int
    title: str
    text: str
    parameters: Mapping[str, str] | None = None
    with_body: bool = True


@dataclass(eq=False, slots=True)
class OAuthListener:
    """A listener that is open; `redirect_uri` is what the browser is to be sent to."""

    redirect_uri: str
    _path: str
    _clock: Clock
    _accepting: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _parameters: Mapping[str, str] | None = None

    async def wait(self, timeout_ms: int) -> dict[str, str] | None:
        """The query parameters of the matching request; None when none came in time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after, self._clock, timeout_ms, tasks.cancel_scope)
            await self._answered.wait()
            tasks.cancel_scope.cancel()
        return None if self._parameters is None else dict(self._parameters)

    async def serve(self, listener: anyio.abc.Listener[anyio.abc.SocketStream]) -> None:
        """Answer connections until one request has matched; then the port is free."""
        async with anyio.create_task_group() as connections:
            with self._accepting:
                await listener.serve(self._connection, connections)
            await listener.aclose()

    async def _connection(self, stream: anyio.abc.SocketStream) -> None:
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after, self._clock, READ_TIMEOUT_MS, tasks.cancel_scope)
            # A browser may go away at any time; that concerns nobody else.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                await self._converse(stream)
            tasks.cancel_scope.cancel()

    async def _converse(self, stream: anyio.abc.SocketStream) -> None:
        import h11

        peer = h11.Connection(h11.SERVER)
        answer = await self._read_answer(stream, peer)
        first = answer.parameters is not None and self._parameters is None
        if first:
            # Before anything is sent: of two requests in flight one counts.
            self._parameters = answer.parameters
            self._accepting.cancel()
        try:
            await stream.send(_rendered(peer, answer))
            await stream.send_eof()
        finally:
            if first:
                self._answered.set()
        # Closing with unread bytes would reset the connection and lose the page.
        for _ in range(_DRAIN_READS):
            await stream.receive()

    async def _read_answer(self, stream: anyio.abc.SocketStream, peer: h11.Connection) -> _Answer:
        import h11

        left = REQUEST_MAX_BYTES
        try:
            while (event := peer.next_event()) is h11.NEED_DATA:
                if left == 0:
                    return _Answer(431, "Too large", "This request is too large.")
                chunk = await stream.receive(min(left, 4_096))
                left -= len(chunk)
                peer.receive_data(chunk)
        except h11.RemoteProtocolError as exc:
            return _Answer(exc.error_status_hint, "Bad request", "This is no request.")
        if not isinstance(event, h11.Request):
            raise anyio.EndOfStream
        answer = self._judge(event.method, event.target)
        return replace(answer, with_body=event.method != b"HEAD")

    def _judge(self, method: bytes, target: bytes) -> _Answer:
        path, _, query = target.decode("latin-1").partition("?")
        if path != self._path or self._parameters is not None:
            return _Answer(404, "Not found", "There is nothing here.")
        if method != b"GET":
            return _Answer(405, "Method not allowed", "Only GET is answered here.")
        parameters = _parameters(query)
        if parameters is None or not (parameters.get("code") or parameters.get("error")):
            return _Answer(400, "Bad request", "This is not the end of a sign-in.")
        if "error" in parameters:
            told = parameters.get("error_description") or parameters["error"]
            return _Answer(200, "Sign-in failed", f"{told[:_SHOWN_CHARS]}", parameters)
        return _Answer(200, "Sign-in done", "You can close this window now.", parameters)


@asynccontextmanager
async def oauth_listener(redirect_uri: str, clock: Clock) -> AsyncIterator[OAuthListener]:
    """A listener for `redirect_uri`, open for the block.

    It binds loopback addresses only. Raises `OAuthListenerError` for another kind of URI and for a
    port that is taken.
    """
    uri = parse_redirect_uri(redirect_uri)
    async with AsyncExitStack() as opened:
        listener = await _bound(uri)
        opened.push_async_callback(listener.aclose)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        actual = RedirectUri(uri.host, port, uri.path)
        async with anyio.create_task_group() as tasks:
            catcher = OAuthListener(str(actual), uri.path, clock)
            tasks.start_soon(catcher.serve, listener)
            try:
                yield catcher
            finally:
                tasks.cancel_scope.cancel()


async def _bound(uri: RedirectUri) -> anyio.abc.Listener[anyio.abc.SocketStream]:
    from anyio.streams.stapled import MultiListener

    try:
        first = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=uri.port)
    except OSError as exc:
        why = "is taken" if exc.errno == errno.EADDRINUSE else f"cannot be used ({exc.strerror})"
        raise _unusable("127.0.0.1", uri.port, why) from exc
    listeners = list(first.listeners)
    if uri.host == "localhost":
        port = first.extra(anyio.abc.SocketAttribute.local_port)
        # Browsers may take `localhost` for ::1. Where that is somebody else's port, the code would
        # go to them; a machine without ::1 needs no listener there.
        try:
            second = await anyio.create_tcp_listener(local_host="::1", local_port=port)
            listeners += second.listeners
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                await first.aclose()
                raise _unusable("::1", port, "is taken") from exc
    return MultiListener(listeners)


async def _cancel_after(clock: Clock, timeout_ms: int, scope: anyio.CancelScope) -> None:
    await clock.sleep(timeout_ms)
    scope.cancel()


def _parameters(query: str) -> dict[str, str] | None:
    """The parameters of a query; None for one that is malformed or names one twice."""
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def _rendered(peer: h11.Connection, answer: _Answer) -> bytes:
    import h11

    title, text = html.escape(answer.title), html.escape(answer.text)
    page = f"<!doctype html><title>{title}</title><h1>{title}</h1><p>{text}</p>\n".encode()
    length = ("Content-Length", str(len(page)))
    response = h11.Response(status_code=answer.status, headers=[*_HEADERS, length])
    events = [response, *([h11.Data(data=page)] if answer.with_body else []), h11.EndOfMessage()]
    return b"".join(peer.send(event) or b"" for event in events)


def _unusable(host: str, port: int, why: str) -> OAuthListenerError:
    return OAuthListenerError(f"port {port} on {host} {why}")


def _refused(text: str) -> OAuthListenerError:
    return OAuthListenerError(
        f"{text!r:.200} is no loopback redirect: http://localhost:<port>/<path> or "
        "http://127.0.0.1:<port>/<path>"
    )
