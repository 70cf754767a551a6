"""Whether and when a failed model call is tried again. Pure: waiting is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lemon_ai.types import ErrorInfo

BASE_DELAY_MS = 400
# A provider's hint is followed plus this much, so that the retry lands after the limit is lifted.
HINT_MARGIN_MS = 1_000
# A longer wait is the caller's decision (another key, another provider), not a sleep in here.
MAX_HINT_MS = 60_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `max_retries` more tries; `jitter()` is uniform in [0, 1).

    A hint above `max_hint_ms` is not slept: the call fails at once and carries it.
    """

    max_retries: int
    jitter: Callable[[], float]
    max_hint_ms: int = MAX_HINT_MS

    def delay_ms(self, retry: int, error: ErrorInfo) -> int | None:
        """The wait before retry number `retry` (from 0), or None when the call has failed."""
        if retry >= self.max_retries or not error.retryable:
            return None
        info = error.rate_limit_info
        if info is not None and info.retry_after_ms is not None:
            hint = info.retry_after_ms
            return None if hint > self.max_hint_ms else hint + HINT_MARGIN_MS
        longest = BASE_DELAY_MS * (1 << retry)
        return round(longest / 2 + longest / 2 * self.jitter())
