"""HTTP, the only user of aiohttp: one connection pool per owner, opened with the first request.

Nothing is retried here; a failure is a TransportFailure that carries an ErrorInfo.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import anyio

from lemon_ai.error_parsing import parse_transport_error
from lemon_ai.errors import AIError
from lemon_ai.text import load_json
from lemon_ai.types import ErrorInfo

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

    from lemon_ai.http_trace import Exchange

CONNECT_TIMEOUT_S = 10
IDLE_TIMEOUT_S = 120  # for each single read of an answer
KEEPALIVE_S = 60
POOL_LIMIT = 100
ERROR_BODY_LIMIT = 64 * 1024
# Long enough for the last bytes of an answer that is already complete, so that its connection can
# be used again; a server that keeps the answer open costs no more than this.
DRAIN_TIMEOUT_S = 0.05
_TRACE, _DUMPS = "LEMON_AI_HTTP_TRACE", "LEMON_AI_ERROR_DUMPS"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class TransportFailure(AIError):
    """No answer, or the answer broke off; `error` says how."""

    code = "transport_failure"

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class Response:
    """An answer whose body is read as it comes. Always `close()` it."""

    __slots__ = ("_exchange", "_host", "_raw", "status")

    def __init__(
        self, raw: aiohttp.ClientResponse, host: str, exchange: Exchange | None = None
    ) -> None:
        self._raw = raw
        self._host = host
        self._exchange = exchange
        self.status = raw.status

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers, names in lower case."""
        return {name.lower(): value for name, value in self._raw.headers.items()}

    async def read_chunk(self) -> bytes:
        """What has arrived, at least one byte; empty at the end of the body."""
        content = self._raw.content
        try:
            return await content.readany()
        except Exception as exc:  # named in our own words, with the host
            raise _failure(exc, self._host) from exc

    async def read_body(self, limit: int = ERROR_BODY_LIMIT) -> bytes:
        """The body up to `limit` bytes."""
        body = bytearray()
        while len(body) < limit and (chunk := await self.read_chunk()):
            body += chunk
        read = bytes(body[:limit])
        if self._exchange is not None and self.status >= 400:
            await self._exchange.refused(self.headers, read)
        return read

    async def finish(self) -> None:
        """Read the rest of a complete answer, briefly, so that the connection is kept."""
        if self._raw.content.is_eof():
            return
        with anyio.move_on_after(DRAIN_TIMEOUT_S, shield=True):
            try:
                while await self._raw.content.readany():
                    pass
            except Exception:  # the answer is complete: how its connection ends does not matter
                return

    def close(self) -> None:
        """Give the connection back when the body was read to its end, else close it."""
        if self._raw.content.is_eof():
            self._raw.release()
        else:
            self._raw.close()


class Transport:
    """A connection pool. `sleep` and `jitter` serve the retries of those who use it."""

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.sleep = sleep
        self.jitter = jitter
        self._env = os.environ if env is None else env
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request; returns once the answer's head is there, whatever its status.

        Redirects are not followed: a key goes to the host it was given for and to no other.
        """
        return await self._request("POST", url, headers, body)

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Status and parsed body (None when it is no JSON) of a small document."""
        return await self._json("GET", url, headers, None)

    async def post_json(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        """The same of a small document that is asked for with a body."""
        return await self._json("POST", url, headers, body)

    async def _json(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, Any]:
        response = await self._request(method, url, headers, content)
        try:
            body = await response.read_body(limit=4 * 1024 * 1024)
        finally:
            response.close()
        try:
            return response.status, load_json(body)
        except ValueError:
            return response.status, None

    async def aclose(self) -> None:
        """Close all connections. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        session = self._session or self._open_session()
        host = urlsplit(without_userinfo(url)).netloc
        exchange = self._sent(url, headers, body)
        try:
            raw = await session.request(
                method,
                _as_it_is(url),
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy_for(url),
            )
        except Exception as exc:
            raise _failure(exc, host) from exc
        response = Response(raw, host, exchange)
        if exchange is not None:
            exchange.answered(response.status, response.headers)
        return response

    def _sent(self, url: str, headers: Mapping[str, str], body: bytes | None) -> Exchange | None:
        """What follows a request, where the environment asks for that."""
        if body is None or not (self._env.get(_TRACE) or self._env.get(_DUMPS)):
            return None
        from lemon_ai.http_trace import HttpTrace  # for the few who look into a fault

        trace = HttpTrace.of(self._env)
        return None if trace is None else trace.sent(url, body, headers)

    def _open_session(self) -> aiohttp.ClientSession:
        # Imported here: aiohttp takes longer to import than this whole package.
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=POOL_LIMIT, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=IDLE_TIMEOUT_S
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session

    def _proxy_for(self, url: str) -> str | None:
        """The proxy that the environment names for this host; never one for loopback."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._proxies:
            self._proxies[origin] = self._find_proxy(parts.scheme, parts.hostname or "")
        return self._proxies[origin]

    def _find_proxy(self, scheme: str, host: str) -> str | None:
        if host in _LOOPBACK:
            return None
        proxy = self._variable(f"{scheme}_proxy") or self._variable("all_proxy")
        excluded = (self._variable("no_proxy") or "").split(",")
        return None if any(_matches(host, name.strip()) for name in excluded) else proxy

    def _variable(self, name: str) -> str | None:
        return self._env.get(name) or self._env.get(name.upper())


def _as_it_is(url: str) -> str | URL:
    """A URL whose path is percent-encoded goes out untouched: its signature covers every byte."""
    from yarl import URL

    return URL(url, encoded=True) if "%" in url else url


def without_userinfo(url: str) -> str:
    """The URL as it may be shown: a name and password in front of the host are left out."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _matches(host: str, name: str) -> bool:
    """Whether an entry of `no_proxy` covers this host: itself, a domain above it, or all."""
    name = name.removeprefix(".").lower()
    return name == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


def _failure(exc: Exception, host: str) -> TransportFailure:
    """Translate what aiohttp raises; anything else is a fault of this program and passes."""
    import aiohttp

    if isinstance(exc, TimeoutError):
        return TransportFailure(parse_transport_error("no answer in time", host, "timeout"))
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        reason = getattr(exc.certificate_error, "verify_message", exc.certificate_error)
        message = f"the certificate of {host} is not trusted: {reason}"
        return TransportFailure(
            ErrorInfo(category="client", code="certificate_error", message=message)
        )
    if isinstance(exc, aiohttp.ClientConnectorError):
        refused = isinstance(exc.os_error, ConnectionRefusedError)
        code = "connection_refused" if refused else "connection_failed"
        detail = "connection refused" if refused else str(exc.os_error)
        return TransportFailure(parse_transport_error(detail, host, code))
    if isinstance(exc, aiohttp.InvalidURL):
        return TransportFailure(
            ErrorInfo(category="client", code="invalid_url", message=f"invalid base URL: {exc}")
        )
    if isinstance(exc, aiohttp.ClientError | OSError):
        detail = "the connection broke" if not str(exc) else str(exc)
        return TransportFailure(parse_transport_error(detail, host, "connection_broken"))
    raise exc
