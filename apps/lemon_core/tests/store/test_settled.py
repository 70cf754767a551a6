"""Outcomes that are known before a cancellation is delivered (specification lemon_core 8.1)."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from lemon_core.store.settled import settled

pytestmark = pytest.mark.anyio


class Slow:
    """Work that waits for the test."""

    def __init__(self) -> None:
        self.started, self.go = anyio.Event(), anyio.Event()
        self.told: list[str] = []

    async def work(self) -> str:
        self.started.set()
        await self.go.wait()
        return "outcome"

    async def caller(self) -> None:
        self.told.append(await settled(self.work))
        self.told.append("same step")
        await anyio.lowlevel.checkpoint()
        self.told.append("never")


async def test_results_and_errors_reach_the_caller() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def works() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert await settled(works) == 7
    with pytest.raises(KeyError, match="x"):
        await settled(fails)


async def test_a_cancelled_scope_waits_for_the_outcome() -> None:
    slow = Slow()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.caller)
            await slow.started.wait()
            tasks.cancel_scope.cancel()
            slow.go.set()
    assert slow.told == ["outcome", "same step"]


async def test_a_cancelled_task_waits_for_the_outcome() -> None:
    """Servers cancel the tasks of handlers, which no cancel scope holds off."""
    slow = Slow()
    # A task without a scope is the subject here.
    task = asyncio.get_running_loop().create_task(slow.caller())
    with anyio.fail_after(5):
        await slow.started.wait()
        for _ in range(2):
            task.cancel()
            await anyio.lowlevel.checkpoint()
        assert not task.done()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert slow.told == ["outcome", "same step"]


async def test_an_error_during_a_cancellation_is_told_first() -> None:
    go, told = anyio.Event(), list[str]()

    async def fails() -> None:
        await go.wait()
        raise KeyError("x")

    async def caller() -> None:
        try:
            await settled(fails)
        except KeyError:
            told.append("error")
        await anyio.lowlevel.checkpoint()
        told.append("never")

    task = asyncio.get_running_loop().create_task(caller())
    with anyio.fail_after(5):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await anyio.lowlevel.checkpoint()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert told == ["error"]
