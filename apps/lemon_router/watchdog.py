"""Notices that a run has been silent for too long."""

from __future__ import annotations

import anyio

from lemon_core.clock import Clock


class Watchdog:
    """Measures the time since the last sign of life; a limit of 0 never runs out."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock, self._timeout_ms = clock, timeout_ms
        self._last_ms = clock.monotonic_ms()

    def touch(self) -> None:
        """There was a sign of life now."""
        self._last_ms = self._clock.monotonic_ms()

    async def silence(self) -> int:
        """Return when there was none for the whole limit: the milliseconds of silence."""
        if not self._timeout_ms:
            await anyio.sleep_forever()
        while (left := self._last_ms + self._timeout_ms - self._clock.monotonic_ms()) > 0:
            # One sleep per limit, whatever happens meanwhile: events cost a number, no timer.
            await self._clock.sleep(left)
        return self._clock.monotonic_ms() - self._last_ms
