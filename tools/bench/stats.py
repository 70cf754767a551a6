"""The arithmetic of the benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was measured, never one in between.

    Raises ValueError without values, or for a `percent` outside 0 to 100.
    """
    if not values:
        raise ValueError("a percentile of nothing")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be from 0 to 100, not {percent}")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def middle_share(values: Sequence[float], of: Sequence[float]) -> float:
    """The middle of the shares that `values` have of what was measured right beside each."""
    return percentile([value / other for value, other in zip(values, of, strict=True)], 50)


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the tail of some measured values."""

    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of `values`; raises ValueError without any."""
        return cls(percentile(values, 50), percentile(values, 99), len(values))


@dataclass(frozen=True, slots=True)
class Timing:
    """One run or call as its client saw it, in seconds since it was begun."""

    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Many runs, `at_once` of them at any time; `cpu_s` is what the server spent on them."""

    at_once: int
    timings: tuple[Timing, ...]
    wall_s: float
    cpu_s: float = 0.0

    @property
    def count(self) -> int:
        """How many runs there were."""
        return len(self.timings)

    @property
    def per_second(self) -> float:
        """Runs finished per second."""
        return self.count / self.wall_s

    @property
    def cpu_ms_per_run(self) -> float:
        """The server's processor time for one run, in milliseconds."""
        return self.cpu_s * 1000 / self.count

    @property
    def total_ms(self) -> Spread:
        """Begin to end, in milliseconds."""
        return Spread.of([timing.total_s * 1000 for timing in self.timings])

    @property
    def first_token_ms(self) -> Spread:
        """Begin to first token, in milliseconds."""
        return Spread.of([timing.first_token_s * 1000 for timing in self.timings])


def growth_per(runs: int, before: float, after: float, done: int) -> float:
    """What `after` exceeds `before` by, scaled from `done` runs to `runs`; never below zero."""
    if done < 1:
        raise ValueError("growth over no runs")
    return max(0.0, after - before) * runs / done
