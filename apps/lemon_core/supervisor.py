"""Restarts long-lived children that fail: with backoff, and not for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.util import capped_backoff

log = get_logger("lemon_core.supervisor")

MAX_RESTARTS = 5
WINDOW_MS = 60_000
BASE_DELAY_MS = 100
MAX_DELAY_MS = 5_000


class Supervisor:
    """Runs children inside the caller's task group."""

    def __init__(
        self, clock: Clock, *, max_restarts: int = MAX_RESTARTS, window_ms: int = WINDOW_MS
    ) -> None:
        self._clock = clock
        self._max_restarts, self._window_ms = max_restarts, window_ms

    async def run(self, name: str, child: Callable[[], Awaitable[None]]) -> None:
        """Run `child` until it returns; after a failure again, 100 ms later and then ever later.

        More than 5 restarts within 60 s let the failure through, to whoever owns the task group.
        """
        restarts: deque[int] = deque()
        while True:
            try:
                await child()
                return
            except Exception as exc:  # whatever failed, the restart is the answer
                now = self._clock.monotonic_ms()
                while restarts and now - restarts[0] > self._window_ms:
                    restarts.popleft()
                if len(restarts) >= self._max_restarts:
                    log.error("supervisor.gave_up", child=name, error=repr(exc))
                    raise
                delay_ms = capped_backoff(BASE_DELAY_MS, len(restarts), MAX_DELAY_MS)
                restarts.append(now)
                log.exception("supervisor.restarting", child=name, delay_ms=delay_ms)
            await self._clock.sleep(delay_ms)
