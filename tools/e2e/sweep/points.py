"""The points at which a process of the sweep can die: every commit, before and after, and every
event.

A point has a name that does not depend on timing: what is written or told of which run, and the how
manyeth time. The wrappers stand around the store's backend and the bus of one runtime; they are put
there by the first component of the sweep's profile, so the product knows nothing of them.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from lemon_core.bus import Bus, Subscription
from lemon_core.events import Event, RunPhaseChanged
from lemon_core.nodes import SharedBackend
from lemon_core.runtime import Runtime
from lemon_core.store import Codec
from lemon_core.store.backend import (
    Backend,
    Delete,
    DeleteRuns,
    FinishRun,
    Put,
    Rows,
    RunRow,
    RunRows,
    Write,
)
from lemon_core.store.codec import decode_key

if TYPE_CHECKING:
    from lemon_core.store.node_locks import NodeLocks

POINTS_FILE: Final = "SWEEP_POINTS_FILE"
KILL_AT: Final = "SWEEP_KILL_AT"

BEHIND: Final = frozenset({"introspection_log", "usage_data", "usage_records", "usage_stats"})
"""Written by a timer, in groups that differ from run to run; no message waits for them."""

# An id that the product has chosen is another one each time; senders of the sweep choose theirs.
_FRESH_ID: Final = re.compile(r"(run_)?[0-9a-f]{8}-[0-9a-f-]{27}")


def is_commit(point: str) -> bool:
    """True for a point before or after a commit, False for one at an event."""
    return not point.startswith("event: ")


class Points:
    """Names the points of one process as it passes them, and dies at the chosen one."""

    def __init__(self, file: Path, kill_at: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill_at = kill_at
        self._seen: Counter[str] = Counter()

    def passed(self, what: str) -> None:
        """The process is at `what`; it does not go on when this is the chosen point."""
        what = _FRESH_ID.sub(lambda found: "run" if found[1] else "id", what)
        self._seen[what] += 1
        count = self._seen[what]
        name = what if count == 1 else f"{what} #{count}"
        os.write(self._file, f"{name}\n".encode())
        if name == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class PointedBackend:
    """`Backend` with a point before and after each commit."""

    def __init__(self, inner: Backend, points: Points) -> None:
        self._inner, self._points, self._codec = inner, points, Codec()

    @property
    def shared(self) -> bool:
        return self._inner.shared

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def ping(self) -> None:
        await self._inner.ping()

    async def get(self, table: str, key: bytes) -> bytes | None:
        return await self._inner.get(table, key)

    async def list(self, table: str) -> Rows:
        return await self._inner.list(table)

    async def list_recent(self, table: str, limit: int) -> Rows:
        return await self._inner.list_recent(table, limit)

    async def get_run(self, run_id: str) -> RunRow | None:
        return await self._inner.get_run(run_id)

    async def finished_runs(self, session_key: str, limit: int) -> RunRows:
        return await self._inner.finished_runs(session_key, limit)

    async def put_new(self, table: str, key: bytes, value: bytes) -> bool:
        async with self._commit(self._put(table, key, value)):
            return await self._inner.put_new(table, key, value)

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        async with self._commit(self._put(table, key, new)):
            return await self._inner.compare_and_swap(table, key, expected, new)

    async def take(self, table: str, key: bytes) -> bytes | None:
        async with self._commit(self._put(table, key, None)):
            return await self._inner.take(table, key)

    async def transaction(self, writes: Sequence[Write]) -> None:
        if all(isinstance(write, Put | Delete) and write.table in BEHIND for write in writes):
            await self._inner.transaction(writes)
            return
        async with self._commit(" + ".join(self._told(write) for write in writes)):
            await self._inner.transaction(writes)

    async def begin_run(self, row: RunRow) -> bool:
        async with self._commit(f"begin {row.run_id}"):
            return await self._inner.begin_run(row)

    def holding(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._shared.holding(name)

    async def is_held(self, name: str) -> bool:
        return await self._shared.is_held(name)

    def node_locks(self, kind: str, node_id: str) -> NodeLocks:
        return self._shared.node_locks(kind, node_id)

    @property
    def _shared(self) -> SharedBackend:
        # What `shared` says of a backend.
        return cast(SharedBackend, self._inner)

    async def sweep_runs(self, *, before_ms: int, keep_per_session: int) -> int:
        return await self._inner.sweep_runs(before_ms=before_ms, keep_per_session=keep_per_session)

    @asynccontextmanager
    async def _commit(self, what: str) -> AsyncIterator[None]:
        if what.partition(" ")[0] in BEHIND:
            yield
            return
        self._points.passed(f"before commit: {what}")
        yield
        self._points.passed(f"after commit: {what}")

    def _told(self, write: Write) -> str:
        match write:
            case FinishRun(row):
                return f"finish {row.run_id}"
            case DeleteRuns(session_key):
                return f"forget {session_key}"
            case Put(table, key, value):
                return self._put(table, key, value)
            case Delete(table, key):
                return self._put(table, key, None)

    def _put(self, table: str, key: bytes, value: bytes | None) -> str:
        decoded = None if value is None else self._codec.decode(value)
        state = decoded.get("state", "") if isinstance(decoded, dict) else ""
        return f"{table} {decode_key(key)} {'gone' if value is None else state}".rstrip()


class PointedBus(Bus):
    """A bus with a point at each event."""

    _points: Points

    @classmethod
    def around(cls, bus: Bus, points: Points) -> PointedBus:
        """`bus` itself, seen through this class: topics and subscriptions are the same ones."""
        pointed = cls.__new__(cls)
        pointed.__dict__ = bus.__dict__
        pointed._points = points
        return pointed

    def publish_from(self, source: Subscription | None, topic: str, event: Event) -> None:
        """See `Bus.publish_from`."""
        self._points.passed(f"event: {_shown(topic, event)}")
        super().publish_from(source, topic, event)


def _shown(topic: str, event: Event) -> str:
    kind = topic.partition(":")[0]
    phase = f" {event.payload.phase}" if isinstance(event.payload, RunPhaseChanged) else ""
    return f"{kind} {event.meta.get('run_id', '')} {event.type}{phase}"


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """Puts the wrappers around store and bus; the first of the profile."""
    points = Points(Path(runtime.environ[POINTS_FILE]), runtime.environ[KILL_AT])
    runtime.store.backend = PointedBackend(runtime.store.backend, points)
    runtime.bus = PointedBus.around(runtime.bus, points)
    yield
