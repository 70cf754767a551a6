"""What this process has learned about credentials: which to leave alone for a while, whose turn it
is, and which one a session's prompt cache lies with.

Nothing here is stored. Times are monotonic milliseconds of the given clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from lemon_ai.errors import error_info
from lemon_ai.types import AssistantMessage, ErrorInfo
from lemon_core.clock import Clock

T = TypeVar("T")

WEEK_MS: Final = 7 * 24 * 3_600_000
SWEEP_MS: Final = 3_600_000

# First pause and longest one, by the kind of failure.
_RATE_LIMIT: Final = (15_000, 300_000)
_AUTH: Final = (300_000, 3_600_000)
_OTHER: Final = (2_000, 60_000)
# How often a credential is tried although it rests: the account may work again long before the time
# that the provider named.
PROBE_MS: Final = 600_000

# The request was at fault, and any other credential would have failed as well.
_NOT_ITS_FAULT: Final = frozenset({"client", "context_length"})

MAX_DOUBLINGS: Final = 20


@dataclass(slots=True)
class _Record:
    failures: int = 0
    until_ms: int = 0
    tried_ms: int = 0


class CredentialHealth:
    """Pauses of credentials after failures, by provider and reference."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], _Record] = {}

    def failed(self, provider: str, ref: str, failure: ErrorInfo | AssistantMessage) -> int:
        """Take note of a failed call; for how many milliseconds the credential now rests.

        A wait that the provider named counts as it is. Requests that were at fault themselves, and
        calls that were refused here, before they went out, are no news about the credential.
        """
        info = error_info(failure)
        if info.category in _NOT_ITS_FAULT or info.local:
            return 0
        record = self._records.setdefault((provider, ref), _Record())
        record.failures += 1
        pause_ms = _pause_ms(info, record.failures)
        record.tried_ms = self._clock.monotonic_ms()
        record.until_ms = record.tried_ms + pause_ms
        return pause_ms

    def succeeded(self, provider: str, ref: str) -> None:
        """The credential works: its failures are forgotten."""
        self._records.pop((provider, ref), None)

    def rests(self, provider: str, ref: str) -> bool:
        """Whether the credential should be left alone now."""
        record = self._records.get((provider, ref))
        return record is not None and record.until_ms > self._clock.monotonic_ms()

    def usable(self, provider: str, refs: Sequence[str]) -> list[str]:
        """The references that do not rest, in order; all of them when every one does.

        One that rests for long is among them once in a while, for one caller: that is its probe.
        """
        awake = [r for r in refs if not self.rests(provider, r) or self._is_due(provider, r)]
        return awake or list(refs)

    def _is_due(self, provider: str, ref: str) -> bool:
        """Whether a resting credential should be tried; saying so counts as a try."""
        record = self._records[provider, ref]
        now = self._clock.monotonic_ms()
        if now - record.tried_ms < PROBE_MS:
            return False
        record.tried_ms = now
        return True


def _pause_ms(info: ErrorInfo, failures: int) -> int:
    limits = info.rate_limit_info
    if limits is not None and limits.retry_after_ms is not None:
        return limits.retry_after_ms
    if info.category == "rate_limit":
        first, longest = _RATE_LIMIT
    elif info.category == "auth":
        first, longest = _AUTH
    else:
        first, longest = _OTHER
    return int(min(first * 2 ** min(failures - 1, MAX_DOUBLINGS), longest))


@dataclass(slots=True)
class _Slot:
    index: int
    used_ms: int


class PoolRotator:
    """Whose turn it is in a pool that shares its work round robin.

    A session keeps the place that it got first: prompt caches are with a provider and a key.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next: dict[str, int] = {}
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._swept_ms = clock.monotonic_ms()

    def order(self, key: str, items: Sequence[T], session: str | None = None) -> list[T]:
        """The items of the pool `key`, beginning with the one whose turn it is."""
        if len(items) < 2:
            return list(items)
        self._sweep()
        if session is None:
            start = self._claim(key)
        else:
            slot = self._slots.get((key, session))
            if slot is None:
                slot = self._slots[key, session] = _Slot(self._claim(key), 0)
            slot.used_ms = self._clock.monotonic_ms()
            start = slot.index
        start %= len(items)
        return [*items[start:], *items[:start]]

    def _claim(self, key: str) -> int:
        index = self._next.get(key, 0)
        self._next[key] = index + 1
        return index

    def _sweep(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now
            kept = {k: slot for k, slot in self._slots.items() if now - slot.used_ms < WEEK_MS}
            self._slots = kept

    def __len__(self) -> int:
        return len(self._slots)


@dataclass(frozen=True, slots=True)
class Pin:
    """Where a session's last answer came from."""

    provider: str
    ref: str


class SessionPins:
    """The provider and credential that lead for a session; advice on the order, nothing more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pins: dict[str, tuple[Pin, int]] = {}
        self._swept_ms = clock.monotonic_ms()

    def get(self, session_id: str | None) -> Pin | None:
        """The session's pin; a call without a session has none."""
        if session_id is None:
            return None
        self._sweep()
        found = self._pins.get(session_id)
        return None if found is None else found[0]

    def set(self, session_id: str | None, pin: Pin) -> None:
        """Have this lead from now on."""
        if session_id is not None:
            self._pins[session_id] = (pin, self._clock.monotonic_ms())

    def clear(self, session_id: str | None) -> None:
        """Have nothing lead but the configured order."""
        if session_id is not None:
            self._pins.pop(session_id, None)

    def _sweep(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now
            self._pins = {k: v for k, v in self._pins.items() if now - v[1] < WEEK_MS}

    def __len__(self) -> int:
        return len(self._pins)
