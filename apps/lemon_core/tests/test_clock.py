"""The clocks (specification lemon_core 2; the fake one is what timing tests stand on)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.clock import Clock, SystemClock, within
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


async def test_the_fake_clock_wakes_sleepers_in_order_of_their_deadlines() -> None:
    clock = FakeClock(now_ms=5_000)
    start = clock.monotonic_ms()
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, ms: int) -> None:
        await clock.sleep(ms)
        woken.append((name, clock.monotonic_ms() - start))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for name, ms in (("late", 30), ("early", 10), ("later", 31)):
                tasks.start_soon(sleeper, name, ms)
            await clock.wait_for_sleepers(3)
            await clock.advance(9)
            assert woken == []
            await clock.advance(21)
            assert woken == [("early", 10), ("late", 30)]
            assert (clock.now_ms(), clock.sleepers) == (5_030, 1)
            await clock.advance(1)
    assert woken[-1] == ("later", 31)


async def test_one_advance_runs_a_repeating_sleeper_each_time() -> None:
    clock = FakeClock()
    ticks = 0

    async def ticker() -> None:
        nonlocal ticks
        while True:
            await clock.sleep(10)
            ticks += 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ticker)
            await clock.wait_for_sleepers()
            await clock.advance(35)
            assert ticks == 3
            tasks.cancel_scope.cancel()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 10)
            await clock.wait_for_sleepers()
            tasks.cancel_scope.cancel()
    assert clock.sleepers == 0


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])
async def test_sleeping_no_time_returns(clock: Clock) -> None:
    before = clock.monotonic_ms()
    with anyio.fail_after(5):
        await clock.sleep(0)
        await clock.sleep(-1)
    assert clock.monotonic_ms() >= before
    assert clock.now_ms() > 1_600_000_000_000


async def test_a_call_within_its_time_gives_its_result_or_its_own_error() -> None:
    clock = FakeClock()

    async def fail() -> int:
        raise KeyError("mine")

    async def group() -> int:
        raise ExceptionGroup("several", [ValueError("one")])

    async def seven() -> int:
        return 7

    with anyio.fail_after(5):
        assert await within(clock, 10, seven) == 7
        with pytest.raises(KeyError, match="mine"):
            await within(clock, 10, fail)
        with pytest.raises(ExceptionGroup, match="several"):
            await within(clock, 10, group)
    assert clock.sleepers == 0


async def test_a_call_that_takes_too_long_is_cancelled() -> None:
    clock, ends = FakeClock(), list[str]()

    async def hang() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")

    async def wait() -> None:
        with pytest.raises(TimeoutError, match="within 10 ms"):
            await within(clock, 10, hang)
        ends.append("told")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await clock.wait_for_sleepers()
            await clock.advance(9)
            assert ends == []
            await clock.advance(1)
    assert ends == ["cancelled", "told"]
    with anyio.move_on_after(0) as scope:
        await within(clock, 10, hang)
    assert scope.cancelled_caught
