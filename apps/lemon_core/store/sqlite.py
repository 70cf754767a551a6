"""The embedded backend: one SQLite file, one writer that commits in groups, one reader beside it.

The standard library's `sqlite3` is spoken to directly;
docs/decisions/0001-sqlite-without-sqlalchemy.md says why.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from lemon_core.clock import Clock
from lemon_core.store.backend import (
    Delete,
    Rows,
    RunRow,
    RunRows,
    Write,
)
from lemon_core.store.db_thread import DbThread
from lemon_core.store.sqlite_file import connect, translate
from lemon_core.store.sqlite_schema import prepare
from lemon_core.store.sqlite_writer import Batch, BeginRun, GroupWriter, Swap

T = TypeVar("T")

_GET = "SELECT value_blob FROM lemon_store_kv WHERE table_name=? AND key_blob=?"
_LIST = "SELECT key_blob, value_blob FROM lemon_store_kv WHERE table_name=? ORDER BY key_blob"
_RECENT = (
    "SELECT key_blob, value_blob FROM lemon_store_kv WHERE table_name=?"
    " ORDER BY updated_at_ms DESC, rowid DESC LIMIT ?"
)
_RUN_COLUMNS = "run_id, session_key, started_at_ms, digest, finished_at_ms, summary_blob"
_GET_RUN = f"SELECT {_RUN_COLUMNS} FROM run_history WHERE run_id=?"
_FINISHED = (
    f"SELECT {_RUN_COLUMNS} FROM run_history WHERE session_key=? AND finished_at_ms IS NOT NULL"
    " ORDER BY started_at_ms DESC, run_id DESC LIMIT ?"
)
_CROWDED = (
    "SELECT session_key FROM run_history WHERE finished_at_ms IS NOT NULL"
    " GROUP BY session_key HAVING count(*) > ?"
)
_DROP_SURPLUS = (
    "DELETE FROM run_history WHERE run_id IN (SELECT run_id FROM run_history WHERE session_key=?"
    " AND finished_at_ms IS NOT NULL ORDER BY started_at_ms DESC, run_id DESC LIMIT -1 OFFSET ?)"
)


class SqliteBackend:
    """`Backend` over the file at `path`; the clock stamps rows."""

    shared = False

    def __init__(self, path: Path, clock: Clock, *, timeout_ms: int = 5_000) -> None:
        self.path = path
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._writer = GroupWriter(self._connect, name="lemon-store-writer", timeout_ms=timeout_ms)
        self._reader = DbThread(self._connect, name="lemon-store-reader", timeout_ms=timeout_ms)

    async def open(self) -> None:
        limit = self._timeout_ms
        # In a thread of its own: bringing a large file up to date takes longer than any write may.
        await anyio.to_thread.run_sync(lambda: prepare(self.path, busy_timeout_ms=limit))
        self._writer.start()
        self._reader.start()

    async def close(self) -> None:
        await self._reader.stop()
        await self._writer.stop()

    async def ping(self) -> None:
        await self._read(lambda db: db.execute("SELECT 1").fetchone())

    async def get(self, table: str, key: bytes) -> bytes | None:
        return await self._read(lambda db: _value(db, table, key))

    async def list(self, table: str) -> Rows:
        return await self._read(lambda db: db.execute(_LIST, (table,)).fetchall())

    async def list_recent(self, table: str, limit: int) -> Rows:
        return await self._read(lambda db: db.execute(_RECENT, (table, limit)).fetchall())

    async def put_new(self, table: str, key: bytes, value: bytes) -> bool:
        return await self.compare_and_swap(table, key, None, value)

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        return await self._write(Swap(table, key, expected, new, self._clock))

    async def take(self, table: str, key: bytes) -> bytes | None:
        removal = self._batch(Delete(table, key))

        def take(db: sqlite3.Connection) -> bytes | None:
            value = _value(db, table, key)
            if value is not None:
                removal(db)
            return value

        return await self._write(take)

    async def transaction(self, writes: Sequence[Write]) -> None:
        await self._write(self._batch(*writes))

    async def begin_run(self, row: RunRow) -> bool:
        return await self._write(self._batch(BeginRun(row)))

    async def get_run(self, run_id: str) -> RunRow | None:
        found = await self._read(lambda db: db.execute(_GET_RUN, (run_id,)).fetchone())
        return None if found is None else RunRow(*found)

    async def finished_runs(self, session_key: str, limit: int) -> RunRows:
        rows = await self._read(lambda db: db.execute(_FINISHED, (session_key, limit)).fetchall())
        return [RunRow(*row) for row in rows]

    async def sweep_runs(self, *, before_ms: int, keep_per_session: int) -> int:
        def sweep(db: sqlite3.Connection) -> int:
            old = "DELETE FROM run_history WHERE started_at_ms<?"
            gone = db.execute(old, (before_ms,)).rowcount
            for (session_key,) in db.execute(_CROWDED, (keep_per_session,)).fetchall():
                gone += db.execute(_DROP_SURPLUS, (session_key, keep_per_session)).rowcount
            return gone

        return await self._write(sweep)

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, busy_timeout_ms=self._timeout_ms)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._writer.run(work)
        except sqlite3.Error as exc:
            raise translate(self.path, exc) from exc

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as exc:
            raise translate(self.path, exc) from exc

    def _batch(self, *writes: Write | BeginRun) -> Batch:
        return Batch(writes, self._clock)


def _value(db: sqlite3.Connection, table: str, key: bytes) -> bytes | None:
    found = db.execute(_GET, (table, key)).fetchone()
    return None if found is None else found[0]
