"""Runs at once."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tools.bench.load import closed_loop
from tools.bench.stats import Timing

pytestmark = pytest.mark.anyio


async def test_it_keeps_as_many_going_as_asked_and_counts_them() -> None:
    going = most = begun = 0

    async def one() -> Timing:
        nonlocal going, most, begun
        going, begun = going + 1, begun + 1
        most = max(most, going)
        await anyio.lowlevel.checkpoint()
        going -= 1
        return Timing(1.0, 2.0)

    with anyio.fail_after(5):
        load = await closed_loop(one, at_once=3, count=10)
    assert (begun, most, going) == (10, 3, 0)
    assert load.timings == (Timing(1.0, 2.0),) * 10


async def test_the_servers_time_is_what_it_spent_meanwhile() -> None:
    readings = iter([2.0, 2.5])

    async def one() -> Timing:
        return Timing(1.0, 2.0)

    load = await closed_loop(one, at_once=8, count=5, cpu_seconds=lambda: next(readings))
    assert load.cpu_ms_per_run == 100.0


async def test_a_failing_run_ends_the_load() -> None:
    async def one() -> Timing:
        raise RuntimeError("no")

    with pytest.raises(ExceptionGroup) as raised:
        await closed_loop(one, at_once=2, count=5)
    assert raised.group_contains(RuntimeError)
