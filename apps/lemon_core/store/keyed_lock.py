"""One lock per key, there only while somebody uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class KeyedLock:
    """Mutual exclusion by key; a free key costs no wait and leaves nothing behind."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Own `key` for the block; the blank key is nobody's and never waits."""
        if not key:
            yield
            return
        lock, users = self._locks.get(key) or (anyio.Lock(fast_acquire=True), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    @property
    def idle(self) -> bool:
        """True when nobody holds or waits for any key."""
        return not self._locks
