"""The drain steps (specification lemon_core 13)."""

from __future__ import annotations

import logging

import anyio
import pytest

from lemon_core.drain import Drain, DrainFn

pytestmark = pytest.mark.anyio


def noting(lines: list[str], line: str) -> DrainFn:
    async def note() -> None:
        lines.append(line)

    return note


async def test_steps_run_in_their_order_whatever_the_order_of_registration() -> None:
    drain, lines = Drain(), list[str]()
    drain.add("relay", noting(lines, "relay"))
    drain.add("end", noting(lines, "end"))
    drain.add("refuse", noting(lines, "refuse one"))
    drain.add("refuse", noting(lines, "refuse two"))
    with anyio.fail_after(5):
        await drain.run(5)
    assert lines == ["refuse one", "refuse two", "end", "relay"]


async def test_the_functions_of_one_step_run_at_once() -> None:
    drain, met = Drain(), anyio.Event()

    async def waits() -> None:
        await met.wait()

    async def meets() -> None:
        met.set()

    drain.add("end", waits)
    drain.add("end", meets)
    with anyio.fail_after(5):
        await drain.run(60)


async def test_a_failing_or_hanging_function_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drain, lines = Drain(), list[str]()

    async def fails() -> None:
        raise RuntimeError("no")

    drain.add("refuse", fails)
    drain.add("refuse", anyio.sleep_forever)
    drain.add("refuse", noting(lines, "refuse"))
    drain.add("end", noting(lines, "end"))
    with anyio.fail_after(5), caplog.at_level(logging.WARNING, logger="lemon"):
        await drain.run(0.05)
    assert lines == ["refuse", "end"]
    assert [record.message for record in caplog.records] == [
        "drain.failed",
        "drain.step_left_behind",
    ]


async def test_it_runs_inside_a_scope_that_is_cancelled_already() -> None:
    drain, lines = Drain(), list[str]()

    async def waits() -> None:
        await anyio.lowlevel.checkpoint()
        lines.append("end")

    drain.add("end", waits)
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        scope.cancel()
        await drain.run(5)
    assert lines == ["end"]
