"""Keeps a number of runs going at once and times them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from tools.bench.stats import Load, Timing

# Only ends a run that hangs.
RUN_LIMIT_S = 60.0


async def closed_loop(
    one: Callable[[], Awaitable[Timing]],
    *,
    at_once: int,
    count: int,
    spread_s: float = 0.0,
    cpu_seconds: Callable[[], float] = lambda: 0.0,
) -> Load:
    """Run `one` `count` times, `at_once` at any time: whoever is done begins the next.

    The first ones begin spread over `spread_s`, so that runs of equal length do not march in step.
    `cpu_seconds` reads what the server has spent so far.
    """
    timings: list[Timing] = []
    left = iter(range(count))
    workers = min(at_once, count)

    async def work(delay_s: float) -> None:
        await anyio.sleep(delay_s)
        for _ in left:
            with anyio.fail_after(RUN_LIMIT_S):
                timings.append(await one())

    cpu_before, began = cpu_seconds(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for index in range(workers):
            tasks.start_soon(work, spread_s * index / workers)
    wall_s = time.perf_counter() - began
    return Load(at_once, tuple(timings), wall_s, cpu_seconds() - cpu_before)
