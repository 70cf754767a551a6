"""What is asked of a webhook's request before anything is done: token, payload, key."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from lemon_core.ids import new_uuid
from lemon_gateway.errors import GatewayError
from lemon_gateway.ingress_server import remote_ip
from lemon_gateway.webhook.payload import Payload, WebhookMessage, parsed_json, text_at
from lemon_gateway.webhook.settings import Integration

T = TypeVar("T")

MAX_KEY_BYTES: Final = 512
LARGE_BYTES: Final = 16_384
_TOKENS: Final = ("token", "webhook_token")
_PAYLOAD_KEYS: Final = ("idempotency_key", "idempotencyKey", "idempotency.key")
_CALLBACKS: Final = ("callback_url", "callbackUrl", "callback.url")
_SECRET_TERMS: Final = (
    "token",
    "secret",
    "password",
    "auth",
    "api_key",
    "apikey",
    "signature",
    "sig",
)
_REDACTED: Final = "[REDACTED]"
_MAX_FIELDS: Final = 1_000
_MAX_FACT: Final = 256


class Refused(GatewayError):
    """A request that is not taken: nothing was submitted. `error` is all that the sender reads."""

    code = "webhook_refused"

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"a webhook was refused with {status}: {error}")
        self.status, self.error = status, error


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that passed: `key` and `callback_url` are None when it has none."""

    message: WebhookMessage
    key: str | None
    callback_url: str | None
    facts: Mapping[str, object]


async def read_incoming(
    request: Request, integration: Integration, threads: anyio.CapacityLimiter
) -> Incoming:
    """What `request` asks for; a large payload is read in one of `threads`.

    Raises `Refused`, for a wrong token before anything else is said about the request.
    """
    known = _has_token(_given_tokens(request, integration), integration)
    if not known and not integration.allow_payload_token:
        raise Refused(401, "unauthorized")
    # Only now: a body costs memory, and whoever has no token is not to spend it.
    payload = await _payload(request, threads)
    if not known and not _has_token(_payload_tokens(payload or {}), integration):
        raise Refused(401, "unauthorized")
    message = None
    if payload is not None:
        size = len(await request.body())
        read = partial(WebhookMessage.of, payload, integration.id)
        message = await _apart(threads, size, read)
    if payload is None or message is None:
        raise Refused(422, "invalid request payload")
    given = text_at(payload, *_CALLBACKS) if integration.callbacks.may_be_given else ""
    return Incoming(
        message=message,
        key=_key(request, payload, integration),
        callback_url=given or integration.callbacks.url,
        facts=_facts(request),
    )


# --- token ---


def _has_token(given: Iterator[bytes], integration: Integration) -> bool:
    """Whether one of `given` is the integration's token; all are compared, in constant time."""
    expected = sha256(integration.token.encode()).digest()
    found = False
    for token in given:
        # Digests, so that the time does not tell of the length either.
        found |= hmac.compare_digest(sha256(token).digest(), expected)
    return found and bool(integration.token)


def _given_tokens(request: Request, integration: Integration) -> Iterator[bytes]:
    for name in ("authorization", "x-webhook-token"):
        value = request.headers.get(name)
        if value is not None:
            scheme, _, rest = value.strip().partition(" ")
            bearer = name == "authorization" and scheme.lower() == "bearer"
            # Header values are read as Latin-1.
            yield (rest if bearer else value).strip().encode("latin-1")
    if integration.allow_query_token:
        for name in _TOKENS:
            if name in request.query_params:
                yield request.query_params[name].encode(errors="replace")


def _payload_tokens(payload: Payload) -> Iterator[bytes]:
    for name in _TOKENS:
        value = payload.get(name)
        if isinstance(value, str):
            yield value.encode(errors="replace")


# --- payload ---


async def _payload(request: Request, threads: anyio.CapacityLimiter) -> Payload | None:
    """The payload, JSON or a form; None for what is neither."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind == "application/x-www-form-urlencoded" and body.startswith(b"{"):
        # What curl says of every body, unless it is told what it sends.
        kind = "application/json"
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        return await _form(request)
    if kind in ("", "application/json") or kind.endswith("+json"):
        return await _apart(threads, len(body), partial(parsed_json, body))
    return None


async def _apart(threads: anyio.CapacityLimiter, size: int, call: Callable[[], T]) -> T:
    """The result of `call`; in a thread for what is large, so that the loop goes on meanwhile."""
    if size <= LARGE_BYTES:
        return call()
    return await anyio.to_thread.run_sync(call, limiter=threads)


async def _form(request: Request) -> Payload | None:
    """The fields of a form; a repeated one is a list. What is sent as a file is not kept."""
    found: dict[str, object] = {}
    try:
        async with request.form(max_files=_MAX_FIELDS, max_fields=_MAX_FIELDS) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    continue
                before = found.get(name)
                if before is None:
                    found[name] = value
                else:
                    found[name] = [*(before if isinstance(before, list) else [before]), value]
    except (HTTPException, UnicodeDecodeError):
        return None
    return found


# --- idempotency key ---


def _key(request: Request, payload: Payload, integration: Integration) -> str | None:
    """The sender's key; raises `Refused` for one that cannot be one."""
    key = request.headers.get("idempotency-key", "").strip()
    if not key and integration.allow_payload_key:
        key = _payload_key(payload)
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise Refused(422, "invalid idempotency key")
    return key or None


def _payload_key(payload: Payload) -> str:
    """The key in the payload, "" when there is none."""
    for path in _PAYLOAD_KEYS:
        there, value = _present(payload, path)
        if there:
            if not isinstance(value, str) or not value.strip():
                raise Refused(422, "invalid idempotency key")
            return value.strip()
    return ""


def _present(payload: Payload, path: str) -> tuple[bool, object]:
    if path in payload:
        return True, payload[path]
    outer, _, inner = path.partition(".")
    nested = payload.get(outer)
    if inner and isinstance(nested, Mapping) and inner in nested:
        return True, nested[inner]
    return False, None


# --- what the run is told of the request ---


def _facts(request: Request) -> dict[str, object]:
    asked_as = request.headers.get("x-request-id", "").strip()[:_MAX_FACT]
    return {
        "method": request.method,
        "path": request.url.path,
        "query": redacted_query(request.url.query),
        "remote_ip": remote_ip(request),
        "user_agent": request.headers.get("user-agent", "")[:_MAX_FACT],
        "request_id": asked_as or new_uuid(),
    }


def redacted_query(query: str) -> dict[str, object]:
    """The parameters of a query, without the values of those that sound secret."""
    found: dict[str, object] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        is_secret = any(term in name.lower() for term in _SECRET_TERMS)
        found[name] = _REDACTED if is_secret else value
    return found
