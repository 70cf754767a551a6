"""One execution at a time per session or resumed conversation.

Two conversations can mean the same session file (one names the session, the other its token), so
every run holds the lock of its key while it executes. Waiters are served first in, first out.

Only two things pass a lock on: its holder releases the lease, or the task that holds it has ended
(confirmed death). Age never does: two writers in one session are worse than a long wait, and a slow
owner may still be writing. An over-age owner is reported, once per sweep, and keeps its lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import anyio

from lemon_core.clock import Clock
from lemon_gateway.errors import LockTimeout
from lemon_gateway.requests import ExecutionRequest

LockKey = tuple[Literal["resume", "session", "default"], str]

REAP_INTERVAL_MS = 30_000


def lock_key(request: ExecutionRequest) -> LockKey:
    """What `request` excludes others from: its native resume token, else its session."""
    if request.resume is not None and request.resume.is_native():
        return ("resume", request.resume.value)
    if request.session_key:
        return ("session", request.session_key)
    return ("default", "global")


@dataclass(frozen=True, slots=True)
class LockLease:
    """The right to execute under `key`; `id` tells two leases of one owner apart."""

    key: LockKey
    run_id: str
    id: int
    acquired_at_ms: int


@dataclass(eq=False, slots=True)
class Waiter:
    """A place in the line of one key; `lease` is set when it has been served."""

    key: LockKey
    run_id: str
    id: int
    lease: LockLease | None = None


@dataclass(slots=True)
class _Line:
    holder: LockLease
    waiters: deque[Waiter] = field(default_factory=deque)


class LockTable:
    """Holders and waiters per key: pure state."""

    def __init__(self) -> None:
        self._lines: dict[LockKey, _Line] = {}
        self._ids = count(1)

    def take(self, key: LockKey, run_id: str, now_ms: int) -> LockLease | Waiter:
        """The lease when `key` is free, else a place at the end of its line."""
        line = self._lines.get(key)
        if line is None:
            lease = LockLease(key, run_id, next(self._ids), now_ms)
            self._lines[key] = _Line(lease)
            return lease
        waiter = Waiter(key, run_id, next(self._ids))
        line.waiters.append(waiter)
        return waiter

    def release(self, lease: LockLease, now_ms: int) -> Waiter | None:
        """Give `lease` back; the next waiter, served, or None. Foreign leases change nothing."""
        line = self._lines.get(lease.key)
        if line is None or line.holder != lease:
            return None
        if not line.waiters:
            del self._lines[lease.key]
            return None
        waiter = line.waiters.popleft()
        waiter.lease = line.holder = LockLease(lease.key, waiter.run_id, waiter.id, now_ms)
        return waiter

    def withdraw(self, waiter: Waiter) -> None:
        """Leave the line; a waiter that has been served or has left already changes nothing."""
        line = self._lines.get(waiter.key)
        if line is not None and waiter in line.waiters:
            line.waiters.remove(waiter)

    def holder(self, key: LockKey) -> LockLease | None:
        """Who holds `key`."""
        line = self._lines.get(key)
        return None if line is None else line.holder

    def waiting(self, key: LockKey) -> int:
        """How many wait for `key`."""
        line = self._lines.get(key)
        return 0 if line is None else len(line.waiters)

    def holders(self) -> list[LockLease]:
        """Every lease that is out."""
        return [line.holder for line in self._lines.values()]


OverAge = Callable[[LockLease, int, int], None]
"""Called with the lease, its age in milliseconds and the number of waiters."""


@dataclass(slots=True)
class _Owner:
    """The task behind a lease and the callback that watches it."""

    task: asyncio.Task[object]
    on_done: Callable[[asyncio.Task[object]], None]


@dataclass(slots=True)
class Waits:
    """How many waits for a lock there were so far, and how many of them ran out."""

    begun: int = 0
    timeouts: int = 0


class EngineLock:
    """The table with waiting, owner death and the sweep around it."""

    def __init__(
        self, clock: Clock, *, max_hold_ms: int | None = None, on_over_age: OverAge | None = None
    ) -> None:
        self._clock = clock
        self._max_hold_ms = max_hold_ms
        self._on_over_age = on_over_age
        self._table = LockTable()
        self._served: dict[int, anyio.Event] = {}
        self._owners: dict[int, _Owner] = {}
        self.waits = Waits()

    async def acquire(self, key: LockKey, run_id: str, timeout_ms: int = 60_000) -> LockLease:
        """The lease of `key`, owned by the current task; raises `LockTimeout`.

        A caller that is cancelled while waiting leaves the line and holds nothing.
        """
        task = _current_task()
        got = self._table.take(key, run_id, self._clock.monotonic_ms())
        if isinstance(got, Waiter):
            got = await self._wait(got, task, timeout_ms)
        self._watch(got, task)
        return got

    @asynccontextmanager
    async def hold(
        self, key: LockKey, run_id: str, timeout_ms: int = 60_000
    ) -> AsyncIterator[LockLease]:
        """The lease of `key` for the length of a block."""
        lease = await self.acquire(key, run_id, timeout_ms)
        try:
            yield lease
        finally:
            self.release(lease)

    def release(self, lease: LockLease) -> None:
        """Pass the lock on. A second release, or one with a foreign lease, does nothing."""
        owner = self._owners.pop(lease.id, None)
        if owner is not None:
            owner.task.remove_done_callback(owner.on_done)
        waiter = self._table.release(lease, self._clock.monotonic_ms())
        if waiter is not None:
            self._served[waiter.id].set()

    def holder(self, key: LockKey) -> LockLease | None:
        """Who holds `key`."""
        return self._table.holder(key)

    def counts(self) -> tuple[int, int]:
        """How many leases are out, and how many callers wait."""
        return len(self._table.holders()), len(self._served)

    def sweep(self) -> None:
        """Report each live owner that holds a lock longer than allowed; free those of dead ones."""
        now_ms = self._clock.monotonic_ms()
        for lease in self._table.holders():
            owner = self._owners.get(lease.id)
            if owner is not None and owner.task.done():
                self.release(lease)
                continue
            age_ms = now_ms - lease.acquired_at_ms
            limit = self._max_hold_ms
            if limit is not None and age_ms > limit and self._on_over_age is not None:
                self._on_over_age(lease, age_ms, self._table.waiting(lease.key))

    async def serve(self, interval_ms: int | None = None) -> None:
        """Sweep for ever, by default as often as the hold limit asks, at least every 30 s."""
        if interval_ms is None:
            interval_ms = min(self._max_hold_ms or REAP_INTERVAL_MS, REAP_INTERVAL_MS)
        while True:
            await self._clock.sleep(interval_ms)
            self.sweep()

    async def _wait(self, waiter: Waiter, task: asyncio.Task[object], timeout_ms: int) -> LockLease:
        began_ms = self._clock.monotonic_ms()
        self.waits.begun += 1
        wake = self._served[waiter.id] = anyio.Event()
        try:
            if timeout_ms > 0:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._ring, wake, timeout_ms)
                    await wake.wait()
                    tasks.cancel_scope.cancel()
        except BaseException:
            # Served and cancelled in the same moment: what nobody will use goes to the next.
            if waiter.lease is not None:
                self.release(waiter.lease)
            raise
        finally:
            self._table.withdraw(waiter)
            del self._served[waiter.id]
        if waiter.lease is None:
            self.waits.timeouts += 1
            raise LockTimeout(waiter.key, self._clock.monotonic_ms() - began_ms)
        return waiter.lease

    async def _ring(self, wake: anyio.Event, timeout_ms: int) -> None:
        # A timer that rings after the waiter was served wakes nobody who still cares.
        await self._clock.sleep(timeout_ms)
        wake.set()

    def _watch(self, lease: LockLease, task: asyncio.Task[object]) -> None:
        def on_done(_: asyncio.Task[object]) -> None:
            self.release(lease)

        self._owners[lease.id] = _Owner(task, on_done)
        task.add_done_callback(on_done)


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("an engine lock can only be held by a task")
    return task
