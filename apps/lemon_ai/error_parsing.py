"""Reading provider failures: HTTP answers, error objects inside a stream, transport failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lemon_ai.errors import RETRYABLE
from lemon_ai.overflow import is_overflow_text
from lemon_ai.retry_hints import retry_after_ms
from lemon_ai.text import load_json
from lemon_ai.types import ErrorCategory, ErrorInfo, RateLimitInfo

RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
_TRANSIENT_STATUSES = frozenset({502, 503, 504, *range(520, 525), 529})
_RATE_TEXT = re.compile(
    r"rate[_ ]?limit|throttl|too[_ ]many[_ ]requests|resource[_ ]exhausted|tokens per minute",
    re.IGNORECASE,
)
_TRANSIENT_TEXT = re.compile(
    r"overloaded|temporarily unavailable|service unavailable|try again later|deadline exceeded",
    re.IGNORECASE,
)
_AUTH_TEXT = re.compile(r"invalid[_ ]api[_ ]key|incorrect api key|unauthorized", re.IGNORECASE)
_EMBEDDED_STATUS = re.compile(r"\bHTTP (\d{3})\b")

_PHRASES: Mapping[ErrorCategory, str] = {
    "rate_limit": "rate limited",
    "auth": "authentication failed",
    "client": "request refused",
    "context_length": "the request is too long for the model",
    "server": "provider failure",
    "transient": "provider unavailable",
    "unknown": "model call failed",
}
_BODY_LIMIT = 200


def classify(status: int | None, code: str | None, text: str) -> ErrorCategory:
    """The category of an error by its HTTP status, provider code and text, in that order of
    trust: too long, auth, rate limit, transient text, 4xx, gateway statuses, other 5xx."""
    if status is None and (embedded := _EMBEDDED_STATUS.search(text)):
        status = int(embedded[1])
    both = f"{code or ''} {text}"
    if is_overflow_text(text, code, status):
        return "context_length"
    if status in (401, 403) or (status is None and _AUTH_TEXT.search(both)):
        return "auth"
    if status == 429 or _RATE_TEXT.search(both):
        return "rate_limit"
    if _TRANSIENT_TEXT.search(both):
        return "transient"
    return _by_status(status)


def _by_status(status: int | None) -> ErrorCategory:
    if status is None:
        return "unknown"
    if 400 <= status < 500:
        return "client"
    if status in _TRANSIENT_STATUSES:
        return "transient"
    return "server" if status >= 500 else "unknown"


def parse_http_error(
    status: int, body: bytes, headers: Mapping[str, str], *, now_ms: int
) -> ErrorInfo:
    """The ErrorInfo of an answer that is not a 200. `headers` has lower-case names."""
    document = _document(body)
    text = provider_text(document) or _plain(body)
    code = provider_code(document)
    category = classify(status, code, text)
    if status == 413 and not text:
        category = "context_length"
    return ErrorInfo(
        category=category,
        status=status,
        code=code,
        message=_message(category, f"HTTP {status}", text),
        provider_message=text or None,
        retryable=_may_be_retried(status, category),
        rate_limit_info=_limits(headers, document, text, now_ms),
        request_id=_request_id(headers, document),
    )


def _document(body: bytes) -> object:
    try:
        document = load_json(body) if body.strip() else None
    except ValueError:
        return None
    # Google wraps the error of a stream in a list.
    return document[0] if isinstance(document, list) and document else document


def _request_id(headers: Mapping[str, str], document: object) -> str | None:
    found = _first_header(headers, _REQUEST_ID_HEADERS)
    inside = document.get("request_id") if isinstance(document, dict) else None
    return found or (inside if isinstance(inside, str) else None)


def parse_stream_error(document: Mapping[str, Any], status: int | None = None) -> ErrorInfo:
    """The ErrorInfo of a data event with a top-level `error`, after a 200; `status` is what the
    error stands for where the API says so by a word."""
    text = provider_text(document) or "the provider reported an error without a message"
    code = provider_code(document)
    error = document.get("error")
    status = status or _status_of(error.get("code") if isinstance(error, dict) else None)
    status = status or _status_of(error.get("status") if isinstance(error, dict) else None)
    category = classify(status, code, text)
    return ErrorInfo(
        category=category,
        status=status,
        code=code,
        message=_message(category, f"HTTP {status}" if status else None, text),
        provider_message=text,
        retryable=_may_be_retried(status, category),
        rate_limit_info=_limits({}, document, text, 0),
        request_id=_request_id({}, document),
    )


def _may_be_retried(status: int | None, category: ErrorCategory) -> bool:
    """By the status where there is one; a limit or an overload may hide behind any status."""
    if status is None:
        return category in RETRYABLE
    return status in RETRY_STATUSES or category in ("rate_limit", "transient")


def parse_transport_error(detail: str, host: str, code: str) -> ErrorInfo:
    """The ErrorInfo of a connection that could not be made or broke."""
    return ErrorInfo(
        category="transient",
        code=code,
        message=f"{_PHRASES['transient']}: {host}: {detail}",
        retryable=True,
    )


def provider_code(document: object) -> str | None:
    """The provider's own word for the error, for example `context_length_exceeded`."""
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    for key in ("code", "type", "__type", "status"):  # Google's code is the number
        value = error.get(key)
        if isinstance(value, str) and value and not value.isdigit():
            return value
    return None


def provider_text(document: object) -> str:
    """The provider's own sentence, from the shapes in use; empty when there is none."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error")
    if isinstance(error, dict):
        return _error_object_text(error)
    if isinstance(error, str):
        return _first_text(document, "error_description", "message", "detail", "description") or (
            error
        )
    details = document.get("detail")
    if isinstance(details, list):
        return "; ".join(filter(None, (_first_text(item, "msg") for item in details)))
    problems = document.get("errors")
    if isinstance(problems, list):
        return "; ".join(filter(None, (_first_text(p, "detail", "title") for p in problems)))
    return _first_text(document, "message", "Message", "detail")


def _error_object_text(error: dict[str, Any]) -> str:
    text = _first_text(error, "message")
    if not text and isinstance(error.get("errors"), list):
        text = "; ".join(filter(None, (_first_text(e, "message") for e in error["errors"])))
    if not text and isinstance(error.get("details"), dict | str):
        details = error["details"]
        text = details if isinstance(details, str) else _first_text(details, "message")
    prefix = error.get("type") or error.get("code")
    if text and isinstance(prefix, str) and prefix not in text:
        return f"{prefix}: {text}"
    return text or (prefix if isinstance(prefix, str) else "")


def _first_text(value: object, *keys: str) -> str:
    if not isinstance(value, dict):
        return ""
    return next((v for key in keys if isinstance(v := value.get(key), str) and v), "")


def _plain(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:_BODY_LIMIT]


def _message(category: ErrorCategory, status: str | None, text: str) -> str:
    head = f"{_PHRASES[category]} ({status})" if status else _PHRASES[category]
    return f"{head}: {' '.join(text.split())}" if text else head


def _status_of(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def _limits(
    headers: Mapping[str, str], document: object, text: str, now_ms: int
) -> RateLimitInfo | None:
    wait = retry_after_ms(headers, document, text, now_ms=now_ms)
    limit = _integer(_first_header(headers, _LIMIT_HEADERS))
    remaining = _integer(_first_header(headers, _REMAINING_HEADERS))
    if wait is None and limit is None and remaining is None:
        return None
    reset_at = now_ms + wait if wait is not None and now_ms else None
    return RateLimitInfo(limit=limit, remaining=remaining, reset_at=reset_at, retry_after_ms=wait)


_REQUEST_ID_HEADERS = (
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "apim-request-id",
    "x-ms-request-id",
)
_LIMIT_HEADERS = ("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit")
_REMAINING_HEADERS = ("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining")


def _first_header(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((headers[name] for name in names if name in headers), None)


def _integer(value: str | None) -> int | None:
    return int(value) if value is not None and value.strip().isdigit() else None
