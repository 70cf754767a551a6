"""Whether a request is Twilio's: its signature, and the public address that it was signed for.

Twilio signs the address as it was configured there, followed by the form's fields, with the
account's token. The server behind a proxy sees another address, so the public one is configured, or
rebuilt from what the proxy forwards; and that is believed from loopback peers only, because anybody
else could name an address for which they hold an old signature.
Source of the scheme: Twilio's "Webhooks security" and the validator of the package `twilio`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from starlette.requests import Request

SIGNATURE_HEADER: Final = "x-twilio-signature"
SETTINGS_HEADER: Final = "x-twilio-webhooks-signature-settings"

MAX_FIELDS: Final = 1_000
_OF_PROXIES: Final = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)
# A page that somebody has open on this machine can post a form to it; the browser says so.
_OF_BROWSERS: Final = ("origin", "sec-fetch-site")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Fields = Sequence[tuple[str, str]]
"""The fields of a form in the order in which they came; names may repeat, values may be empty."""

Refusal = Literal["missing_token", "missing_url", "missing_signature", "shared_key", "mismatch"]
"""Why a request does not count as Twilio's."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a request reached this server. `path` is still percent-encoded, header names are in
    lower case, `peer` is the address at the other end of the connection."""

    path: str
    query: str
    peer: str | None
    headers: Mapping[str, str]
    scheme: str = "http"

    @classmethod
    def of(cls, request: Request) -> Arrival:
        """The arrival of a Starlette request (of a server that leaves forwarded headers alone)."""
        raw = request.scope.get("raw_path")
        return cls(
            path=raw.decode("latin-1") if isinstance(raw, bytes) else request.url.path,
            query=request.scope.get("query_string", b"").decode("latin-1"),
            peer=request.client.host if request.client else None,
            headers=request.headers,
            scheme=request.url.scheme,
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """The public side of this server: `host` has a port unless it is the default of `scheme`."""

    scheme: str
    host: str


def form_fields(body: bytes) -> tuple[tuple[str, str], ...]:
    """The fields of an url-encoded form, empty ones too. Raises ValueError above 1,000 fields."""
    text = body.decode("utf-8", "replace")
    return tuple(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))


def origin_of(arrival: Arrival) -> Origin | None:
    """Where the request was addressed to before any proxy; None when it does not say.

    `X-Forwarded-Proto`, `-Host` and `-Port` count when the peer is on loopback; of a list the first
    item, which is the outermost proxy's.
    """
    forwarded = arrival.headers if is_loopback(arrival.peer) else {}
    scheme = (_first(forwarded, "x-forwarded-proto") or arrival.scheme).lower()
    host = _first(forwarded, "x-forwarded-host") or arrival.headers.get("host", "").strip()
    name, port = _split_port(host)
    port = _first(forwarded, "x-forwarded-port") or port
    if not name or scheme not in _DEFAULT_PORTS:
        return None
    if port.isascii() and port.isdigit() and int(port) != _DEFAULT_PORTS[scheme]:
        name = f"{name}:{int(port)}"
    return Origin(scheme, name)


def rebuilt_url(arrival: Arrival) -> str | None:
    """The address that the sender used, as far as `origin_of` can tell."""
    origin = origin_of(arrival)
    return url_under(f"{origin.scheme}://{origin.host}", arrival) if origin else None


def url_under(base: str, arrival: Arrival) -> str:
    """The arrival's path and query below a configured public address, which may have a path."""
    url = base.rstrip("/") + arrival.path
    return f"{url}?{arrival.query}" if arrival.query else url


def signature(auth_token: str, url: str, fields: Fields) -> str:
    """What Twilio puts into `X-Twilio-Signature`.

    The address, then name and value of each field, sorted; of a repeated field every value once.
    """
    text = url + "".join(name + value for name, value in sorted(set(fields)))
    digest = hmac.new(auth_token.encode(), text.encode(), hashlib.sha1)
    return base64.b64encode(digest.digest()).decode("ascii")


def refusal(
    auth_token: str | None, url: str | None, fields: Fields, headers: Mapping[str, str]
) -> Refusal | None:
    """None when the request is signed for `url`, with or without a port; else why it is refused.

    `headers` has lower-case names. The scheme with shared keys is refused: its key is another one.
    """
    given = headers.get(SIGNATURE_HEADER, "").strip()
    if not auth_token:
        return "missing_token"
    if not url:
        return "missing_url"
    if not given:
        return "missing_signature"
    if headers.get(SETTINGS_HEADER, "").strip():
        return "shared_key"
    # Each is compared, whichever is right: the time tells nothing.
    matches = [
        hmac.compare_digest(signature(auth_token, candidate, fields).encode(), given.encode())
        for candidate in _with_and_without_port(url)
    ]
    return None if any(matches) else "mismatch"


def is_from_here(arrival: Arrival) -> bool:
    """Whether a program of this machine asks, and for nobody else: no proxy has been on the way,
    and no browser asks for a page."""
    others = (*_OF_PROXIES, *_OF_BROWSERS)
    return is_loopback(arrival.peer) and not any(name in arrival.headers for name in others)


def is_loopback(peer: str | None) -> bool:
    """Whether the other end of a connection is this machine."""
    try:
        address = ip_address(peer or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _with_and_without_port(url: str) -> tuple[str, ...]:
    """`url` with its port (the default one if it has none) and without; empty if it is no address.

    Twilio is not consistent about it, so that its own validator tries both.
    """
    try:
        parts = urlsplit(url)
        port, default = parts.port, _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:  # a port that is none, or a broken IPv6 address
        return ()
    if default is None or not parts.hostname:
        return ()
    head, rest = url.split("//", 1)
    rest = rest.removeprefix(parts.netloc)
    login, at, place = parts.netloc.rpartition("@")
    bare = login + at + _split_port(place)[0]
    return tuple(f"{head}//{where}{rest}" for where in (bare, f"{bare}:{port or default}"))


def _split_port(host: str) -> tuple[str, str]:
    """Name and port of `name`, `name:port`, `[v6]` or `[v6]:port`; the port may be empty."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and "]" not in port else (host, "")


def _first(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name, "").split(",", 1)[0].strip()
