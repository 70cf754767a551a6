"""Time as a collaborator: what gates behaviour takes a `Clock`, and tests move a fake one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from lemon_core import ids

T = TypeVar("T")


class Clock(Protocol):
    """Wall-clock time for records, monotonic time and sleeping for behaviour."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; for what is stored or shown."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; for timeouts, ages and intervals."""

    async def sleep(self, ms: float) -> None:
        """Wait `ms` milliseconds of this clock; zero or less yields once."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return ids.now_ms()

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return ids.monotonic_ms()

    async def sleep(self, ms: float) -> None:
        """Wait `ms` milliseconds."""
        await anyio.sleep(max(ms, 0) / 1000)


async def within(clock: Clock, ms: float, call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, which has `ms` milliseconds of `clock`; raises TimeoutError after them.

    What `call` raises comes out as itself.
    """
    results: list[T] = []
    failure: Exception | None = None

    async with anyio.create_task_group() as tasks:

        async def expire() -> None:
            await clock.sleep(ms)
            tasks.cancel_scope.cancel()

        tasks.start_soon(expire)
        try:
            results.append(await call())
        except Exception as exc:  # raised in here, it would come out as a group
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise TimeoutError(f"no result within {ms:g} ms")
    return results[0]
