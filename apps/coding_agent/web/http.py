"""Requests of the web tools: bounded in time, size and redirects, to public addresses alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urldefrag, urljoin

import anyio

from coding_agent.web.guard import UrlRefused
from lemon_agent import ToolError
from lemon_core.address_guard import AddressGuard, guarded_connector

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES: Final = 5 * 1_024 * 1_024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class FetchFailed(ToolError):
    """There was no usable answer; another way may give one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; `is_cut` when its body went on beyond the limit."""

    url: str
    status: int
    content_type: str
    charset: str | None
    body: bytes
    is_cut: bool

    def text(self) -> str:
        """The body as text, by what the server says of it, else UTF-8."""
        try:
            return self.body.decode(self.charset or "utf-8", errors="replace")
        except LookupError:
            return self.body.decode(errors="replace")


async def fetch(
    url: str,
    guard: AddressGuard,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    max_redirects: int,
) -> Answer:
    """The answer to a GET of `url`, redirects followed; every hop is judged anew.

    Raises `UrlRefused` and `FetchFailed`.
    """
    seen: set[str] = set()
    try:
        with anyio.fail_after(timeout_s):
            async with guarded_session(guard) as session:
                while True:
                    guard.check_url(url)
                    if url in seen:
                        raise FetchFailed(f"{url} redirects to itself")
                    if len(seen) > max_redirects:
                        raise FetchFailed(f"more than {max_redirects} redirects, the last to {url}")
                    seen.add(url)
                    answer, target = await _get(session, url, headers)
                    if target is None:
                        return answer
                    url = urldefrag(urljoin(url, target)).url
    except TimeoutError as exc:
        raise FetchFailed(f"{url} did not answer within {timeout_s:g} s") from exc


async def _get(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> tuple[Answer, str | None]:
    """The answer, and where it redirects to."""
    import aiohttp
    from yarl import URL

    try:
        # As it is: the address that was judged is the one that is asked.
        async with session.get(
            URL(url, encoded=False), headers=headers, allow_redirects=False
        ) as response:
            target = response.headers.get("Location")
            if response.status in _REDIRECTS and target:
                return Answer(url, response.status, "", None, b"", False), target
            body, is_cut = await _bounded(response)
            return (
                Answer(url, response.status, response.content_type, response.charset, body, is_cut),
                None,
            )
    except aiohttp.ClientError as exc:
        refused = _refusal(exc)
        if refused is not None:
            raise refused from exc
        raise FetchFailed(f"{url} cannot be fetched: {str(exc) or type(exc).__name__}") from exc
    except (OSError, ValueError) as exc:
        raise FetchFailed(f"{url} cannot be fetched: {exc}") from exc


async def request_json(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    params: Mapping[str, str] | None = None,
    body: object = None,
) -> Any:
    """The JSON answer of a configured service. Raises `FetchFailed` for anything else."""
    import aiohttp

    try:
        with anyio.fail_after(timeout_s):
            async with (
                aiohttp.ClientSession(trust_env=True) as session,
                session.request(
                    method, url, headers=headers, params=params, json=body, allow_redirects=False
                ) as response,
            ):
                data, _ = await _bounded(response)
    except TimeoutError as exc:
        raise FetchFailed(f"{url} did not answer within {timeout_s:g} s") from exc
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise FetchFailed(f"{url} cannot be asked: {str(exc) or type(exc).__name__}") from exc
    if not 200 <= response.status < 300:
        raise FetchFailed(f"{url} answered {response.status}")
    try:
        return json.loads(data)
    except ValueError as exc:
        raise FetchFailed(f"{url} did not answer with JSON") from exc


@asynccontextmanager
async def guarded_session(guard: AddressGuard) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that connects to addresses that `guard` has judged, and keeps no cookie."""
    import aiohttp

    # No proxy of the environment: it would do the resolving.
    async with aiohttp.ClientSession(
        connector=guarded_connector(guard), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        yield session


async def _bounded(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return bytes(body[:MAX_BODY_BYTES]), True
    return bytes(body), False


def _refusal(exc: BaseException | None) -> UrlRefused | None:
    while exc is not None:
        if isinstance(exc, UrlRefused):
            return exc
        exc = exc.__cause__ or exc.__context__
    return None
