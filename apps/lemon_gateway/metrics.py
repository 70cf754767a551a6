"""What the gateway counts, for `GET /metrics`.

What happens is heard through telemetry; what is now is asked when the page is. No label holds
anything a user wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from lemon_core.http.metrics import Histogram, Metric, Sample, exposition
from lemon_core.phases import RunOutcome
from lemon_core.telemetry import Telemetry
from lemon_gateway.engine_lock import EngineLock
from lemon_gateway.scheduler import Scheduler

_PREFIX: Final = "lemon_gateway_"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OUTCOMES: Final = tuple(outcome.value for outcome in RunOutcome)
_STREAMS: Final = ("stream_resumed", "stream_reset")


class GatewayMetrics:
    """Counters of one gateway; `active` counts the runs that are queued or live.

    `open_streams` is set by whoever serves any.
    """

    def __init__(self, scheduler: Scheduler, lock: EngineLock, active: Callable[[], int]) -> None:
        self.open_streams: Callable[[], int] | None = None
        self._scheduler, self._lock, self._active = scheduler, lock, active
        self._started = self._over_age = 0
        self._finished: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._first_token, self._slot_wait = Histogram(_SECONDS), Histogram(_SECONDS)

    @contextmanager
    def counting(self, telemetry: Telemetry) -> Iterator[None]:
        """Count what `telemetry` tells, until the block ends."""
        detach = [
            telemetry.attach("lemon.run.", self._take_run),
            telemetry.attach("lemon.gateway.scheduler.slot_granted", self._take_grant),
            telemetry.attach("lemon.gateway.engine_lock.over_age", self._take_over_age),
            telemetry.attach("lemon.gateway.rpc.", self._take_stream),
        ]
        try:
            yield
        finally:
            for stop in detach:
                stop()

    def page(self) -> str:
        """All numbers, as Prometheus reads them."""
        return exposition(self._metrics())

    def _take_run(
        self, name: str, numbers: Mapping[str, float], facts: Mapping[str, object]
    ) -> None:
        match name:
            case "lemon.run.start":
                self._started += 1
            case "lemon.run.first_token":
                self._first_token.observe(numbers["latency_ms"] / 1000)
            case "lemon.run.stop":
                self._finished[str(facts.get("outcome"))] += 1

    def _take_grant(self, _: str, numbers: Mapping[str, float], __: Mapping[str, object]) -> None:
        self._slot_wait.observe(numbers["wait_ms"] / 1000)

    def _take_over_age(self, *_: object) -> None:
        self._over_age += 1

    def _take_stream(self, name: str, _: Mapping[str, float], __: Mapping[str, object]) -> None:
        self._streams[name.rpartition(".")[2]] += 1

    def _metrics(self) -> Iterable[Metric]:
        slots, (held, waiting) = self._scheduler.counts(), self._lock.counts()
        waits = self._lock.waits
        yield _counter("runs_started_total", "Runs whose executor was called.", self._started)
        ended = [Sample(self._finished[name], {"outcome": name}) for name in _OUTCOMES]
        yield Metric(f"{_PREFIX}runs_finished_total", "counter", "Runs that ended.", ended)
        yield _gauge("runs_active", "Runs that are queued or live.", self._active())
        yield _gauge("slots_in_flight", "Execution slots in use.", slots.in_flight)
        yield _gauge("slots_waiting", "Conversations that wait for a slot.", slots.waitq)
        yield _gauge("slots_max", "Execution slots.", slots.max)
        yield self._slot_wait.metric(f"{_PREFIX}slot_wait_seconds", "From asking to the slot.")
        yield self._first_token.metric(
            f"{_PREFIX}first_token_seconds", "From the slot to the first text of the answer."
        )
        yield _gauge("engine_locks_held", "Engine locks that are out.", held)
        yield _gauge("engine_locks_waiting", "Runs that wait for an engine lock.", waiting)
        yield _counter("engine_lock_waits_total", "Waits for an engine lock.", waits.begun)
        yield _counter("engine_lock_timeouts_total", "Waits that ran out.", waits.timeouts)
        yield _counter(
            "engine_lock_over_age_total", "Sweeps that found an owner over age.", self._over_age
        )
        if self.open_streams is not None:
            yield _gauge("rpc_streams_open", "Open streams of run events.", self.open_streams())
            for name in _STREAMS:
                help_text = f"Subscriptions that went on after a number: {name}."
                yield _counter(f"rpc_{name}_total", help_text, self._streams[name])


def _counter(name: str, help_text: str, value: float) -> Metric:
    return Metric(f"{_PREFIX}{name}", "counter", help_text, [Sample(value)])


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return Metric(f"{_PREFIX}{name}", "gauge", help_text, [Sample(value)])
