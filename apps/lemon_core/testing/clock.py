"""A clock that only the test moves."""

from __future__ import annotations

import heapq
import itertools

import anyio
import anyio.lowlevel


class FakeClock:
    """Stands still until `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 1_000
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()
        self._slept = anyio.Event()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep."""
        return len(self._sleepers)

    async def sleep(self, ms: float) -> None:
        """Wait until the test has advanced the clock by `ms`."""
        if ms <= 0:
            await anyio.lowlevel.checkpoint()
            return
        entry = (self._monotonic_ms + ms, next(self._order), anyio.Event())
        heapq.heappush(self._sleepers, entry)
        slept, self._slept = self._slept, anyio.Event()
        slept.set()
        try:
            await entry[2].wait()
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Return when at least `count` tasks are asleep."""
        while len(self._sleepers) < count:
            await self._slept.wait()

    async def advance(self, ms: int) -> None:
        """Move time on by `ms`, stopping at each deadline so that a woken task sleeps on from
        there.

        Returns when the tasks that were woken have run until they wait again for something else.
        """
        target = self._monotonic_ms + ms
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, wake = heapq.heappop(self._sleepers)
            self._move_to(max(self._monotonic_ms, int(deadline)))
            wake.set()
            await self._settle()
        self._move_to(target)
        await self._settle()

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or a time server does."""
        self._now_ms = now_ms

    def _move_to(self, monotonic_ms: int) -> None:
        self._now_ms += monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms

    async def _settle(self) -> None:
        # A woken task needs a few turns of the loop to get back to sleep.
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
