"""`bazel run //tools/bench:bus`: what fan-out costs beside a bare deque for each subscriber.

A publisher publishes a burst and lets the subscribers run until each has taken all of it. The bare
form appends to a deque for each subscriber and empties them: no topics, no waking up, no tasks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import anyio

from lemon_core.bus import Bus, Subscription
from lemon_core.events import Event
from tools.bench.stats import middle_share, percentile
from tools.bench.table import Aim, Row, at_least, machine_facts, show

SUBSCRIBERS: Final = (1, 10, 100)
BURST: Final = 20
# The kinds take turns this often, so that what else the machine does hits all of them.
ROUNDS: Final = 10
TOPIC: Final = "bench"

_EVENT: Final = Event("bench", 0, None, {})

AIMS: Final[Mapping[int, Aim]] = {1: at_least(0.05), 10: at_least(0.1), 100: at_least(0.1)}

PerSecond = dict[tuple[str, int], list[float]]
"""Deliveries per second in each round, by kind (`bus`, `bare`) and subscribers."""


class Turns:
    """Lets the publisher wait until every subscriber has taken what was published."""

    def __init__(self, subscribers: int) -> None:
        self._subscribers, self._missing, self._all = subscribers, 0, anyio.Event()

    def begin(self) -> None:
        """A burst follows."""
        self._missing, self._all = self._subscribers, anyio.Event()

    def taken(self) -> None:
        """A subscriber has all of it."""
        self._missing -= 1
        if not self._missing:
            self._all.set()

    async def wait(self) -> None:
        """Return when all have."""
        await self._all.wait()


async def bus_fan_out(subscribers: int, bursts: int) -> float:
    """Deliveries per second through the bus, from publishing to having received."""
    bus, turns = Bus(), Turns(subscribers)

    async def receive(subscription: Subscription) -> None:
        count = 0
        while batch := await subscription.receive_batch():
            count += len(batch)
            if count == BURST:
                count = 0
                turns.taken()

    with ExitStack() as open_ones:
        async with anyio.create_task_group() as tasks:
            for _ in range(subscribers):
                tasks.start_soon(receive, open_ones.enter_context(bus.subscribe(TOPIC)))
            began = time.perf_counter()
            for _ in range(bursts):
                turns.begin()
                for _ in range(BURST):
                    bus.publish(TOPIC, _EVENT)
                await turns.wait()
            wall_s = time.perf_counter() - began
            bus.stop()
    return subscribers * bursts * BURST / wall_s


async def bare_fan_out(subscribers: int, bursts: int) -> float:
    """Deliveries per second through deques alone."""
    buffers: list[deque[Event]] = [deque() for _ in range(subscribers)]
    began = time.perf_counter()
    for _ in range(bursts):
        for _ in range(BURST):
            for buffer in buffers:
                buffer.append(_EVENT)
        for buffer in buffers:
            while buffer:
                buffer.popleft()
    return subscribers * bursts * BURST / (time.perf_counter() - began)


async def measure(deliveries: int) -> PerSecond:
    """What each round of each kind gave, each kind with about `deliveries` in all."""
    kinds: dict[str, Callable[[int, int], Awaitable[float]]] = {
        "bus": bus_fan_out,
        "bare": bare_fan_out,
    }
    found: PerSecond = {}
    for subscribers in SUBSCRIBERS:
        bursts = max(1, deliveries // (ROUNDS * subscribers * BURST))
        for _ in range(ROUNDS):
            for name, one in kinds.items():
                found.setdefault((name, subscribers), []).append(await one(subscribers, bursts))
    return found


def rows(per_second: PerSecond) -> list[Row]:
    """The table, shares first."""
    shares: list[Row] = []
    plain: list[Row] = []
    for count in SUBSCRIBERS:
        name = f"{count} subscriber{'s' if count > 1 else ''}"
        bus, bare = per_second["bus", count], per_second["bare", count]
        share = middle_share(bus, bare)
        shares.append(Row(f"share of bare deques, {name}", share, "", AIMS[count]))
        plain.append(Row(f"deliveries, {name}", percentile(bus, 50), "1/s"))
        plain.append(Row(f"bare deques, {name}", percentile(bare, 50), "1/s"))
    return [*shares, *plain]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="bus", description="What fan-out costs.")
    parser.add_argument("--deliveries", type=int, default=500_000, help="of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    measured = anyio.run(measure, max(1, arguments.deliveries))
    print(show(rows(measured), machine_facts(began), as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
