"""Time as a collaborator: what gates behaviour takes a `Clock`, and tests move a fake one."""

from __future__ import annotations

from typing import Protocol

import anyio

from lemon_core import ids


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
