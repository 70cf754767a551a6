"""When to try again, and how long providers ask to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_ai import ErrorInfo
from lemon_ai.retry import RetryPolicy
from lemon_ai.retry_hints import retry_after_ms
from lemon_ai.types import RateLimitInfo

NOW_MS = 1_800_000_000_000


def error(*, retryable: bool = True, hint_ms: int | None = None) -> ErrorInfo:
    limits = None if hint_ms is None else RateLimitInfo(retry_after_ms=hint_ms)
    return ErrorInfo(
        category="rate_limit", message="m", retryable=retryable, rate_limit_info=limits
    )


@given(st.integers(0, 2), st.floats(0, 1, exclude_max=True))
def test_delays_lie_between_half_and_whole_of_a_doubling_base(retry: int, jitter: float) -> None:
    delay_ms = RetryPolicy(3, lambda: jitter).delay_ms(retry, error())
    assert delay_ms is not None
    assert 200 * 2**retry <= delay_ms <= 400 * 2**retry


def test_the_count_of_retries_is_bounded() -> None:
    policy = RetryPolicy(2, lambda: 0.0)
    assert policy.delay_ms(1, error()) == 400
    assert policy.delay_ms(2, error()) is None
    assert policy.delay_ms(0, error(retryable=False)) is None


def test_a_hint_is_followed_unless_it_is_long() -> None:
    policy = RetryPolicy(3, lambda: 0.0)
    assert policy.delay_ms(0, error(hint_ms=200)) == 1_200
    assert policy.delay_ms(0, error(hint_ms=60_000)) == 61_000
    assert policy.delay_ms(0, error(hint_ms=60_001)) is None
    hurried = RetryPolicy(3, lambda: 0.0, 500)
    assert hurried.delay_ms(0, error(hint_ms=500)) == 1_500
    assert hurried.delay_ms(0, error(hint_ms=501)) is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "1.5"}, 1_500),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:10 GMT"}, 10_000),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0),
        ({"retry-after": "soon", "retry-after-ms": "250"}, 250),
        ({"x-ms-retry-after-ms": "90"}, 90),
        ({"x-ratelimit-reset-after": "2"}, 2_000),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90_000),
        ({"x-ratelimit-reset-tokens": "20ms"}, 20),
        ({"ratelimit-reset": "2027-01-15T08:00:05Z"}, 5_000),
        ({"ratelimit-reset": "1800000007"}, 7_000),
        ({"ratelimit-reset": "1800000000250"}, 250),
        ({"retry-after": "3", "retry-after-ms": "9"}, 3_000),
        (
            {
                "anthropic-ratelimit-requests-remaining": "5",
                "anthropic-ratelimit-requests-reset": "2027-01-15T09:00:00Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30Z",
            },
            30_000,
        ),
        ({"anthropic-ratelimit-tokens-remaining": "0"}, None),
        ({"retry-after": "nonsense"}, None),
        ({}, None),
    ],
)
def test_hints_in_headers(headers: dict[str, str], expected: int | None) -> None:
    assert retry_after_ms(headers, None, "", now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ({"error": {"retry_after": 2}}, "", 2_000),
        ({"retry_after_ms": 15}, "", 15),
        ({"retryAfter": 1.5}, "", 1_500),
        ({"error": {"retryAfterMs": 4}}, "", 4),
        ({"error": {"details": [{"reason": "x"}, {"retryDelay": "34.5s"}]}}, "", 34_500),
        ({"error": {"details": [{"retryDelay": "soon"}]}}, "", None),
        ({"error": "slow down", "retry_after": 3}, "", 3_000),
        ({"error": {"message": "m"}, "retry_after": "0.5"}, "", 500),
        ({"error": {"retry_after": 0}}, "retry in 5s", 0),
        (None, "quota will reset after 1h2m3s", 3_723_000),
        (None, "Please retry in 5s", 5_000),
        (None, "Please try again in 20 ms", 20),
        ([], "nothing here", None),
    ],
)
def test_hints_in_body_and_text(document: object, text: str, expected: int | None) -> None:
    assert retry_after_ms({}, document, text, now_ms=NOW_MS) == expected
