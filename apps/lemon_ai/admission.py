"""Whether a call may go out now: circuit breaker, concurrency slots and a rate bucket per provider.

Nothing waits here: a call is let in or refused at once, and a refusal says so with `local=True`, so
that nobody takes it for news about the provider or its credentials. State lives with its
`Admission`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_ai.errors import AIError, error_info
from lemon_ai.event_stream import CONSUMER_REASONS, Release
from lemon_ai.events import StreamCanceled, StreamDone, StreamError, TerminalEvent
from lemon_ai.types import ErrorCategory, ErrorInfo

State = Literal["closed", "open", "half_open"]
Reason = Literal["circuit_open", "rate_limited", "max_concurrency"]
Emit = Callable[[str, Mapping[str, float], Mapping[str, object]], None]

MAX_PROBES: Final = 2
SUCCESSES_TO_CLOSE: Final = 2

# Whose fault it is decides: a bad key, a full quota or a bad request says nothing of the provider.
_COUNTED: Final[frozenset[ErrorCategory]] = frozenset({"transient", "server", "unknown"})

_TEXTS: Final[Mapping[Reason, str]] = {
    "circuit_open": "{provider} failed too often and rests for {wait} s more; the last failure "
    "was: {failure}",
    "rate_limited": "too many calls to {provider} in a short time; try again in {wait} s",
    "max_concurrency": "{provider} has {cap} calls under way, which is the most that may be",
}


def monotonic_ms() -> float:
    """Milliseconds that never go back."""
    return time.monotonic_ns() / 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What is let through to one provider; None is unlimited.

    `rate` is calls per second once `burst` calls are used up.
    """

    failures: int = 5
    recovery_ms: int = 30_000
    concurrency: int | None = 10
    rate: float | None = 10.0
    burst: int = 20


UNLIMITED: Final = Limits(concurrency=None, rate=None)
"""For servers of one's own: only the breaker is left."""


class AdmissionError(AIError):
    """The call was refused here and never went out."""

    code = "not_admitted"

    def __init__(
        self,
        reason: Reason,
        provider: str,
        *,
        retry_after_ms: int | None = None,
        last_failure: str | None = None,
        cap: int | None = None,
    ) -> None:
        wait = f"{(retry_after_ms or 0) / 1000:.3g}"
        text = _TEXTS[reason].format(
            provider=provider, wait=wait, failure=last_failure or "unknown", cap=cap
        )
        super().__init__(text)
        self.reason: Reason = reason
        self.provider = provider
        self.retry_after_ms = retry_after_ms
        self.last_failure = last_failure

    def info(self) -> ErrorInfo:
        """As an error of a call: another provider may do, and no credential is to blame."""
        return ErrorInfo(
            category="transient",
            code=self.reason,
            message=str(self),
            retryable=True,
            local=True,
        )


@dataclass(slots=True)
class Breaker:
    """Opens after failures in a row, lets two probes through when it has rested, closes after two
    successes. The caller gives the time."""

    limits: Limits
    state: State = "closed"
    failures: int = 0
    successes: int = 0
    probes: int = 0
    opened_ms: float = 0.0
    last_failure: str | None = None

    def ask(self, now_ms: float) -> bool:
        """Whether a call may go out; one that may counts as a probe while half open."""
        if self.state == "open" and self.wait_ms(now_ms) <= 0:
            self.state, self.successes, self.probes = "half_open", 0, 0
        if self.state == "closed":
            return True
        if self.state == "open" or self.probes >= MAX_PROBES:
            return False
        self.probes += 1
        return True

    def wait_ms(self, now_ms: float) -> int:
        """How long it stays open."""
        if self.state != "open":
            return 0
        return max(0, int(self.opened_ms + self.limits.recovery_ms - now_ms))

    def settle(self, outcome: bool | None, failure: str | None, now_ms: float) -> None:
        """A call that was let in is over: True it worked, False it failed, None it says nothing."""
        if self.state == "half_open":
            self.probes = max(0, self.probes - 1)
        if outcome is None:
            return
        if outcome:
            self._succeeded()
        else:
            self.last_failure = failure
            self._failed(now_ms)

    def reset(self) -> None:
        """Closed, as at the beginning."""
        self.state, self.failures, self.successes, self.probes = "closed", 0, 0, 0
        self.last_failure = None

    def _succeeded(self) -> None:
        if self.state == "half_open":
            self.successes += 1
            if self.successes >= SUCCESSES_TO_CLOSE:
                self.reset()
        elif self.state == "closed":
            self.failures = 0

    def _failed(self, now_ms: float) -> None:
        self.failures += 1
        if self.state == "half_open" or (
            self.state == "closed" and self.failures >= self.limits.failures
        ):
            self.state, self.opened_ms = "open", now_ms


@dataclass(slots=True)
class Bucket:
    """Calls that may go out at once; they come back at a steady rate."""

    limits: Limits
    tokens: float
    filled_ms: float

    def take(self, now_ms: float) -> int:
        """Take one; 0, or the milliseconds until there is one."""
        rate = self.limits.rate
        if rate is None:
            return 0
        grown = self.tokens + (now_ms - self.filled_ms) * rate / 1000
        self.tokens, self.filled_ms = min(grown, float(self.limits.burst)), now_ms
        if self.tokens >= 1:
            self.tokens -= 1
            return 0
        return max(1, int((1 - self.tokens) * 1000 / rate))


@dataclass(slots=True)
class _Provider:
    breaker: Breaker
    bucket: Bucket
    cap: int | None
    running: int = 0
    epoch: int = field(default=0)


@dataclass(frozen=True, slots=True)
class BreakerView:
    """What may be shown of a provider's breaker."""

    state: State
    failures: int
    time_until_recovery_ms: int
    last_failure: str | None
    running: int


class Admission:
    """The state of every provider that was called; created at the first call.

    `limits_of` says what holds for a provider; `emit` gets telemetry.
    """

    def __init__(
        self,
        *,
        limits_of: Callable[[str], Limits] = lambda provider: Limits(),
        now_ms: Callable[[], float] = monotonic_ms,
        emit: Emit | None = None,
    ) -> None:
        self._limits_of, self._now_ms, self._emit = limits_of, now_ms, emit
        self._providers: dict[str, _Provider] = {}

    def enter(self, provider: str) -> Release:
        """Let a call in and return what has to be called, once, when it is over.

        Raises `AdmissionError`. Order: breaker, slot, rate.
        """
        entry = self._entry(provider)
        now = self._now_ms()
        before = entry.breaker.state
        if not entry.breaker.ask(now):
            breaker = entry.breaker
            raise self._refused(
                AdmissionError(
                    "circuit_open",
                    provider,
                    retry_after_ms=breaker.wait_ms(now),
                    last_failure=breaker.last_failure,
                )
            )
        self._told(provider, before, entry.breaker.state)
        if entry.cap is not None and entry.running >= entry.cap:
            entry.breaker.settle(None, None, now)
            raise self._refused(AdmissionError("max_concurrency", provider, cap=entry.cap))
        if wait_ms := entry.bucket.take(now):
            entry.breaker.settle(None, None, now)
            error = AdmissionError("rate_limited", provider, retry_after_ms=wait_ms)
            raise self._refused(error)
        entry.running += 1
        return self._release(provider, entry, now)

    def set_concurrency_cap(self, provider: str, cap: int | None) -> None:
        """At most so many calls at once; calls that are under way go on."""
        if cap is not None and cap < 1:
            raise ValueError(f"a concurrency cap is at least 1, not {cap}")
        self._entry(provider).cap = cap

    def is_open(self, provider: str) -> bool:
        """Whether a call would be refused because the provider failed too often."""
        known = self._providers.get(provider)
        return known is not None and known.breaker.wait_ms(self._now_ms()) > 0

    def time_until_recovery_ms(self, provider: str) -> int:
        """How long `is_open` stays true."""
        known = self._providers.get(provider)
        return 0 if known is None else known.breaker.wait_ms(self._now_ms())

    def get_state(self, provider: str) -> BreakerView:
        """The provider's breaker and how many calls are under way."""
        entry = self._entry(provider)
        breaker = entry.breaker
        wait_ms = breaker.wait_ms(self._now_ms())
        return BreakerView(
            breaker.state, breaker.failures, wait_ms, breaker.last_failure, entry.running
        )

    def reset(self, provider: str) -> None:
        """Forget the provider's failures."""
        self._entry(provider).breaker.reset()

    # -- inside ------------------------------------------------------------------------------

    def _entry(self, provider: str) -> _Provider:
        entry = self._providers.get(provider)
        if entry is None:
            limits = self._limits_of(provider)
            bucket = Bucket(limits, float(limits.burst), self._now_ms())
            entry = _Provider(Breaker(limits), bucket, limits.concurrency)
            self._providers[provider] = entry
        return entry

    def _release(self, provider: str, entry: _Provider, started_ms: float) -> Release:
        is_over = False

        def release(terminal: TerminalEvent | None) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            entry.running -= 1
            now, before = self._now_ms(), entry.breaker.state
            entry.breaker.settle(*outcome_of(terminal), now)
            self._told(provider, before, entry.breaker.state)
            self._send(
                "lemon_ai.dispatcher.dispatch",
                {"duration_ms": now - started_ms},
                {"provider": provider},
            )

        return release

    def _refused(self, error: AdmissionError) -> AdmissionError:
        self._send(
            "lemon_ai.dispatcher.rejected",
            {"retry_after_ms": error.retry_after_ms or 0},
            {"provider": error.provider, "reason": error.reason},
        )
        return error

    def _told(self, provider: str, before: State, after: State) -> None:
        if before == after:
            return
        name = {"closed": "closed", "half_open": "half_opened", "open": "opened"}[after]
        if before == "half_open" and after == "open":
            name = "reopened"
        self._send(f"lemon_ai.circuit_breaker.{name}", {}, {"provider": provider})

    def _send(
        self, name: str, measurements: Mapping[str, float], metadata: Mapping[str, object]
    ) -> None:
        if self._emit is not None:
            self._emit(name, measurements, metadata)


def outcome_of(terminal: TerminalEvent | None) -> tuple[bool | None, str | None]:
    """What the end of a call says of its provider: worked, failed with a text, or nothing."""
    match terminal:
        case StreamDone():
            return True, None
        case StreamError(message=message):
            info = error_info(message)
            return (False, info.message) if info.category in _COUNTED else (None, None)
        case StreamCanceled(reason=reason):
            return (None, None) if reason in CONSUMER_REASONS else (False, reason)
        case None:  # the consumer stopped reading
            return None, None
