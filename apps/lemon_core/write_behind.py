"""Writing what has collected, a moment after it came: for what nobody waits for.

A busy runtime so pays a few commits per second, and the two commits of a run wait for none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.errors import StoreError

WRITE_DELAY_MS: Final = 250
RETRY_DELAY_MS: Final = 5_000

log = get_logger("lemon_core.write_behind")


class WriteBehind:
    """Calls `write`, one call at a time, after each `wake`; `serve` does it by itself.

    `write` writes all that has collected and raises `StoreError`; what it could not write it keeps.
    `event` is the name of the log line that tells of such a failure.
    """

    def __init__(self, write: Callable[[], Awaitable[None]], clock: Clock, *, event: str) -> None:
        self._write, self._clock, self._event = write, clock, event
        self._awake = anyio.Event()
        self._writing = anyio.Lock()

    def wake(self) -> None:
        """There is something to write."""
        self._awake.set()

    async def serve(self) -> None:
        """Write after each `wake`, until cancelled; call `close` afterwards."""
        while True:
            await self._awake.wait()
            # What comes in the meantime goes with the same commit.
            await self._clock.sleep(WRITE_DELAY_MS)
            if not await self._written():
                await self._clock.sleep(RETRY_DELAY_MS)

    async def close(self) -> None:
        """Write what is left; a failure is logged."""
        await self._written()

    async def flush(self) -> None:
        """Return when everything that came before is written; raises what `write` raises."""
        # Held across the commit: whoever waits here must find nothing of it still under way, and
        # two writers would take the same.
        async with self._writing:
            # Only a set event is replaced: `serve` would wait for the old one for ever.
            if self._awake.is_set():
                self._awake = anyio.Event()
            try:
                await self._write()
            except BaseException:  # cancelled, it has not written everything either
                self._awake.set()
                raise

    async def _written(self) -> bool:
        try:
            await self.flush()
        except StoreError as exc:
            log.warning(self._event, error=str(exc))
            return False
        return True
