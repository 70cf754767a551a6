"""HTTP for WASM tools: to what their capabilities name, at public addresses, and no further."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from coding_agent.wasm.manifests import AllowedHost, Http
from coding_agent.web.http import MAX_BODY_BYTES, guarded_session
from lemon_core.address_guard import AddressGuard

if TYPE_CHECKING:
    import aiohttp

MAX_HEADERS: Final = 32
# They belong to the connection or to the host.
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "cookie"})


class Refused(Exception):
    """What a module asks for is not given; the module is told why."""


async def http_request(
    allowed: Http, request: Mapping[str, Any], added: Mapping[str, str], guard: AddressGuard
) -> dict[str, object]:
    """The answer: status, headers and text. Redirects are answers too, so none leads elsewhere.

    `added` are headers of the host's (the tool's token), which win over the module's. Raises
    `Refused`, and the guard's refusal.
    """
    import aiohttp
    from yarl import URL

    method, url = str(request.get("method", "GET")).upper(), str(request.get("url", ""))
    _check(allowed.allow, method, url, guard.check_url(url))
    headers = {**_headers(request.get("headers"), added), **added}
    body = request.get("body")
    data = body.encode() if isinstance(body, str) else None
    try:
        with anyio.fail_after(allowed.timeout_ms / 1000):
            async with (
                guarded_session(guard) as session,
                session.request(
                    method, URL(url), headers=headers, data=data, allow_redirects=False
                ) as response,
            ):
                return await _answer(response)
    except TimeoutError:
        raise Refused(f"{url} did not answer within {allowed.timeout_ms} ms") from None
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise Refused(f"{url} cannot be asked: {str(exc) or type(exc).__name__}") from exc


async def _answer(response: aiohttp.ClientResponse) -> dict[str, object]:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refused(f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
    kept = ("Content-Type", "Location", "Retry-After", "ETag", "Last-Modified")
    return {
        "status": response.status,
        "headers": {name: response.headers[name] for name in kept if name in response.headers},
        "body": bytes(body).decode(errors="replace"),
    }


def _check(allowed: tuple[AllowedHost, ...], method: str, url: str, host: str) -> None:
    parts = urlsplit(url)
    path = parts.path or "/"
    # What a server may read as another path is not compared with a prefix.
    if ".." in path or "%" in path or "\\" in url:
        raise Refused(f"{url!r}: only a plain path is asked for")
    for rule in allowed:
        place = (rule.scheme, rule.host.lower(), rule.port)
        prefix = f"{rule.path_prefix.rstrip('/')}/"
        is_place = place == (parts.scheme, host, parts.port) and f"{path}/".startswith(prefix)
        if is_place and method in rule.methods:
            return
    raise Refused(f"{method} {url} is not among the capabilities")


def _headers(given: object, added: Mapping[str, str]) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_HEADERS:
        raise Refused(f"headers are an object of at most {MAX_HEADERS} texts")
    ours = _OURS | {name.lower() for name in added}
    headers = {str(name): str(value) for name, value in given.items()}
    for name, value in headers.items():
        if not name.isascii() or not value.isprintable() or any(c in name for c in " \r\n:"):
            raise Refused(f"{json.dumps(name)} is no header")
    return {name: value for name, value in headers.items() if name.lower() not in ours}
