"""How long a provider asks to wait, from headers, body and text; and defaults where it is silent.

Every reader returns milliseconds or None and never raises: a hint that cannot be read is no hint.
"""

from __future__ import annotations

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
# An epoch is told from a number of seconds by its size.
_EPOCH_S = 1_000_000_000


def retry_after_ms(
    headers: Mapping[str, str], document: object, text: str, *, now_ms: int
) -> int | None:
    """The wait in milliseconds that this answer asks for. `headers` has lower-case names."""
    for name, read in _HEADERS:
        value = headers.get(name)
        if value is not None and (wait := read(value.strip(), now_ms)) is not None:
            return max(wait, 0)
    return _from_body(document) or _from_text(text)


def _seconds_or_date(value: str, now_ms: int) -> int | None:
    try:
        return round(float(value) * 1000)
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # rare, and slow to import

    try:
        return round(parsedate_to_datetime(value).timestamp() * 1000) - now_ms
    except ValueError:
        return None


def _milliseconds(value: str, now_ms: int) -> int | None:
    del now_ms
    try:
        return round(float(value))
    except ValueError:
        return None


def _duration_or_time(value: str, now_ms: int) -> int | None:
    if _WHOLE_DURATION.fullmatch(value):
        return parse_duration_ms(value)
    try:
        number = float(value)
    except ValueError:
        return _iso(value, now_ms)
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
    ("ratelimit-reset", _duration_or_time),
)


def parse_duration_ms(text: str) -> int:
    """The milliseconds of a text such as `1m30s`, `20ms` or `1h 2m`."""
    return round(sum(float(n) * _UNIT_MS[unit.lower()] for n, unit in _DURATION.findall(text)))


def _from_body(document: object) -> int | None:
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    for key, factor in (
        ("retry_after_ms", 1),
        ("retryAfterMs", 1),
        ("retry_after", 1_000),
        ("retryAfter", 1_000),
    ):
        value = error.get(key)
        if isinstance(value, int | float) and value >= 0:
            return round(value * factor)
    return None


def _from_text(text: str) -> int | None:
    match = _IN_TEXT.search(text)
    return parse_duration_ms(match[1].replace(" ", "").lower()) if match else None


def default_delay_ms(info: ErrorInfo) -> int:
    """A sensible wait where the provider gave none."""
    if info.category == "rate_limit":
        return 60_000
    if info.status == 504 or info.code == "connection_refused":
        return 10_000
    return 5_000
