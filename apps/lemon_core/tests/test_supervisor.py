"""Restarting long-lived children (specification lemon_core 13)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.supervisor import Supervisor
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


async def run_until_done(clock: FakeClock, supervisor: Supervisor, child: object) -> None:
    """Supervise `child`, skipping every wait."""
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def supervise() -> None:
                await supervisor.run("child", child)  # type: ignore[arg-type]  # an async function
                tasks.cancel_scope.cancel()

            tasks.start_soon(supervise)
            while True:
                await clock.wait_for_sleepers()
                await clock.advance(5_000)


async def test_a_child_that_returns_is_done() -> None:
    runs = 0

    async def child() -> None:
        nonlocal runs
        runs += 1

    with anyio.fail_after(5):
        await Supervisor(FakeClock()).run("child", child)
    assert runs == 1


async def test_a_failing_child_starts_again_after_a_growing_wait() -> None:
    clock, starts = FakeClock(), list[int]()
    begin = clock.monotonic_ms()

    async def child() -> None:
        starts.append(clock.monotonic_ms() - begin)
        if len(starts) < 4:
            raise RuntimeError("again")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Supervisor(clock).run, "child", child)
            for wait in (100, 200, 400):
                await clock.wait_for_sleepers()
                await clock.advance(wait)
    assert starts == [0, 100, 300, 700]


async def test_the_sixth_failure_within_a_minute_goes_through() -> None:
    clock, starts = FakeClock(), 0

    async def child() -> None:
        nonlocal starts
        starts += 1
        raise RuntimeError(f"failure {starts}")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="failure 6")):
        await run_until_done(clock, Supervisor(clock), child)
    assert starts == 6


async def test_failures_far_apart_are_forgiven() -> None:
    clock, starts = FakeClock(), 0

    async def child() -> None:
        nonlocal starts
        starts += 1
        await clock.sleep(30_000)
        if starts < 20:
            raise RuntimeError("now and then")

    await run_until_done(clock, Supervisor(clock), child)
    assert starts == 20
