"""How long a provider asks to wait, from headers, body and text; and defaults where it is silent.

Every reader returns milliseconds or None and never raises: a hint that cannot be read is no hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime

from lemon_ai.types import ErrorInfo

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_WHOLE_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_IN_TEXT = re.compile(
    r"(?:reset after|retry in|try again in)\s+((?:\d+(?:\.\d+)?\s?(?:ms|h|m|s))+)", re.IGNORECASE
)
# An epoch is told from a number of seconds by its size, and one in milliseconds by more of it.
_EPOCH_S = 1_000_000_000
_EPOCH_MS = 1_000_000_000_000


def retry_after_ms(
    headers: Mapping[str, str], document: object, text: str, *, now_ms: int
) -> int | None:
    """The wait in milliseconds that this answer asks for. `headers` has lower-case names."""
    for name, read in _HEADERS:
        value = headers.get(name)
        if value is not None and (wait := read(value.strip(), now_ms)) is not None:
            return max(wait, 0)
    if (wait := _exhausted_bucket(headers, now_ms)) is not None:
        return max(wait, 0)
    if (value := headers.get("ratelimit-reset")) is not None:
        wait = _duration_or_time(value.strip(), now_ms)
        if wait is not None:
            return max(wait, 0)
    wait = _from_body(document)
    return _from_text(text) if wait is None else wait


def _seconds_or_date(value: str, now_ms: int) -> int | None:
    number = _number(value)
    if number is not None:
        return round(number * 1000)
    from email.utils import parsedate_to_datetime  # rare, and slow to import

    try:
        return round(parsedate_to_datetime(value).timestamp() * 1000) - now_ms
    except ValueError:
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _milliseconds(value: str, now_ms: int) -> int | None:
    del now_ms
    number = _number(value)
    return None if number is None else round(number)


def _duration_or_time(value: str, now_ms: int) -> int | None:
    if _WHOLE_DURATION.fullmatch(value):
        return parse_duration_ms(value)
    number = _number(value)
    if number is None:
        return _iso(value, now_ms)
    if number >= _EPOCH_MS:
        return round(number) - now_ms
    return round(number * 1000) - (now_ms if number >= _EPOCH_S else 0)


def _iso(value: str, now_ms: int) -> int | None:
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000) - now_ms
    except ValueError:
        return None


_HEADERS = (
    ("retry-after", _seconds_or_date),
    ("retry-after-ms", _milliseconds),
    ("x-ms-retry-after-ms", _milliseconds),
    ("x-ratelimit-reset-after", _duration_or_time),
    ("x-ratelimit-reset-requests", _duration_or_time),
    ("x-ratelimit-reset-tokens", _duration_or_time),
)


def _exhausted_bucket(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Anthropic counts requests and tokens apart; only the bucket that is empty makes one wait."""
    waits = [
        _duration_or_time(headers[reset].strip(), now_ms)
        for name, value in headers.items()
        if name.startswith("anthropic-ratelimit-")
        and name.endswith("-remaining")
        and value.strip() == "0"
        and (reset := name.removesuffix("remaining") + "reset") in headers
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def parse_duration_ms(text: str) -> int:
    """The milliseconds of a text such as `1m30s`, `20ms` or `1h 2m`."""
    return round(sum(float(n) * _UNIT_MS[unit.lower()] for n, unit in _DURATION.findall(text)))


def _from_body(document: object) -> int | None:
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    for place in (error, document):
        if isinstance(place, dict) and (wait := _from_object(place)) is not None:
            return wait
    return None


def _from_object(error: Mapping[str, object]) -> int | None:
    for key, factor in (
        ("retry_after_ms", 1),
        ("retryAfterMs", 1),
        ("retry_after", 1_000),
        ("retryAfter", 1_000),
    ):
        value = error.get(key)
        if isinstance(value, str):
            value = _number(value)
        if isinstance(value, int | float) and value >= 0:
            return round(value * factor)
    return _google_delay(error.get("details"))


def _google_delay(details: object) -> int | None:
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and _WHOLE_DURATION.fullmatch(delay):
            return parse_duration_ms(delay)
    return None


def _from_text(text: str) -> int | None:
    match = _IN_TEXT.search(text)
    return parse_duration_ms(match[1].replace(" ", "").lower()) if match else None


def default_delay_ms(info: ErrorInfo) -> int:
    """A sensible wait where the provider gave none."""
    if info.category == "rate_limit":
        return 60_000
    if info.code == "circuit_open":
        return 30_000
    if info.status == 504 or info.code == "connection_refused":
        return 10_000
    return 5_000
