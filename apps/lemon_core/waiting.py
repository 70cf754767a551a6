"""Waiting for whichever of several things comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of `waits` has returned; the others are cancelled."""
    async with anyio.create_task_group() as tasks:

        async def until(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(until, wait)
