"""Work whose outcome is known before its caller may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class _Outcome(Generic[T]):
    """What became of the work: as a value, so that no group wraps its error."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self.results: list[T] = []
        self.error: Exception | None = None

    async def find(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                self.results.append(await self._work())
            except Exception as exc:  # any fault belongs to the caller, who gets it below
                self.error = exc


async def settled(work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns or raises, even if the caller is cancelled meanwhile.

    The cancellation waits and is delivered at the caller's next await: what the caller keeps in
    memory never differs from what was stored. `work` has to end by itself in bounded time.
    """
    outcome = _Outcome(work)
    interrupted = False
    # The scope holds off cancel scopes; a task that is cancelled itself (a gRPC server ends the
    # handlers of clients that went away) gets the exception once the child has ended.
    with anyio.CancelScope(shield=True):
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome.find)
        except asyncio.CancelledError:
            interrupted = True
    if interrupted:
        cancel_again()
    if outcome.error is not None:
        raise outcome.error
    return outcome.results[0]


def cancel_again() -> None:
    """Give the current task back the one cancellation that was held off."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
