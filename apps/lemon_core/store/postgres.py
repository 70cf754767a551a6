"""The shared backend: one PostgreSQL database, written by several nodes.

`psycopg` is spoken to directly; docs/decisions/0001-sqlite-without-sqlalchemy.md says why. What has
one winner is one statement, which the server decides between all nodes; a transaction touches its
rows in one fixed order, so that two of them never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import cast

from psycopg import AsyncCursor

from lemon_core.clock import Clock
from lemon_core.store.advisory import holding, is_held
from lemon_core.store.backend import (
    Delete,
    DeleteRuns,
    FinishRun,
    Put,
    Rows,
    RunRow,
    RunRows,
    Write,
)
from lemon_core.store.node_locks import NodeLocks
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.store.postgres_links import Link, PostgresLinks
from lemon_core.store.postgres_schema import prepare

_ROW = "table_name=%(table)s AND key_blob=%(key)s"
_GET = f"SELECT value_blob FROM lemon_store_kv WHERE {_ROW}"
_LIST = "SELECT key_blob, value_blob FROM lemon_store_kv WHERE table_name=%(table)s ORDER BY 1"
_RECENT = (
    "SELECT key_blob, value_blob FROM lemon_store_kv WHERE table_name=%(table)s"
    " ORDER BY write_number DESC, write_place DESC LIMIT %(limit)s"
)
# All rows of a transaction share a number, drawn by the first of them, and count their places.
_NUMBER = (
    "CASE WHEN %(first)s THEN nextval('lemon_store_writes') ELSE currval('lemon_store_writes') END"
)
_INSERT = (
    "INSERT INTO lemon_store_kv"
    " (table_name, key_blob, value_blob, updated_at_ms, write_number, write_place)"
    f" VALUES (%(table)s, %(key)s, %(value)s, %(now)s, {_NUMBER}, %(place)s)"
    " ON CONFLICT (table_name, key_blob) DO "
)
_SET = (
    "UPDATE SET value_blob=excluded.value_blob, updated_at_ms=excluded.updated_at_ms,"
    " write_number=excluded.write_number, write_place=excluded.write_place"
)
_PUT, _PUT_NEW = f"{_INSERT}{_SET}", f"{_INSERT}NOTHING"
_SWAP = (
    "UPDATE lemon_store_kv SET value_blob=%(value)s, updated_at_ms=%(now)s,"
    f" write_number=nextval('lemon_store_writes'), write_place=0 WHERE {_ROW}"
    " AND value_blob=%(expected)s"
)
_DELETE = f"DELETE FROM lemon_store_kv WHERE {_ROW}"
_DELETE_SAME = f"{_DELETE} AND value_blob=%(expected)s"
_TAKE = f"{_DELETE} RETURNING value_blob"

_RUN_COLUMNS = "run_id, session_key, started_at_ms, digest, finished_at_ms, summary_blob"
_INSERT_RUN = (
    f"INSERT INTO run_history ({_RUN_COLUMNS}) VALUES (%(run_id)s, %(session_key)s,"
    " %(started_at_ms)s, %(digest)s, %(finished_at_ms)s, %(summary)s) ON CONFLICT (run_id) DO "
)
_BEGIN_RUN = f"{_INSERT_RUN}NOTHING"
_FINISH_RUN = (
    f"{_INSERT_RUN}UPDATE SET session_key=excluded.session_key,"
    " finished_at_ms=excluded.finished_at_ms, summary_blob=excluded.summary_blob"
)
_DELETE_RUNS = (
    "DELETE FROM run_history WHERE run_id IN (SELECT run_id FROM run_history"
    " WHERE session_key=%(session_key)s ORDER BY run_id FOR UPDATE)"
)
_GET_RUN = f"SELECT {_RUN_COLUMNS} FROM run_history WHERE run_id=%(run_id)s"
_FINISHED = (
    f"SELECT {_RUN_COLUMNS} FROM run_history WHERE session_key=%(session_key)s"
    " AND finished_at_ms IS NOT NULL ORDER BY started_at_ms DESC, run_id DESC LIMIT %(limit)s"
)
# Several nodes sweep: each leaves to the others what they are at.
_SWEEP = (
    "DELETE FROM run_history WHERE run_id IN (SELECT run_id FROM run_history WHERE"
    " started_at_ms < %(before)s OR run_id IN (SELECT run_id FROM (SELECT run_id, row_number()"
    " OVER (PARTITION BY session_key ORDER BY started_at_ms DESC, run_id DESC) AS place"
    " FROM run_history WHERE finished_at_ms IS NOT NULL) AS ranked WHERE place > %(keep)s)"
    " ORDER BY run_id FOR UPDATE SKIP LOCKED)"
)

Statement = tuple[str, Mapping[str, object]]
Row = tuple[object, ...]
# The class has a method called `list`.
Found = list[Row]


class PostgresBackend:
    """`Backend` over the database at `address`; the clock stamps rows."""

    shared = True

    def __init__(self, address: PostgresAddress, clock: Clock, *, timeout_ms: int = 5_000) -> None:
        self.address = address
        self._clock = clock
        self._links = PostgresLinks(address, timeout_ms=timeout_ms)

    async def open(self) -> None:
        self._links.open()
        try:
            await self._links.run(lambda link: prepare(link, self.address.label), writing=False)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._links.close()

    async def ping(self) -> None:
        await self._rows("SELECT 1", {})

    def holding(self, name: str) -> AbstractAsyncContextManager[None]:
        """The advisory lock of `name` for the block; raises as `advisory.holding`."""
        return holding(self.address, name, self._clock)

    def node_locks(self, kind: str, node_id: str) -> NodeLocks:
        """The locks of a node; nothing is held before `serve`."""
        return NodeLocks(self.address, kind, node_id, self._clock)

    async def is_held(self, name: str) -> bool:
        """True while a living process holds the lock of `name`. Raises `StoreError`."""
        return await self._links.run(lambda link: is_held(link, name), writing=False)

    async def get(self, table: str, key: bytes) -> bytes | None:
        rows = await self._rows(_GET, {"table": table, "key": key})
        return cast(bytes, rows[0][0]) if rows else None

    async def list(self, table: str) -> Rows:
        return cast(Rows, await self._rows(_LIST, {"table": table}))

    async def list_recent(self, table: str, limit: int) -> Rows:
        return cast(Rows, await self._rows(_RECENT, {"table": table, "limit": limit}))

    async def put_new(self, table: str, key: bytes, value: bytes) -> bool:
        return await self._changed(_PUT_NEW, self._values(Put(table, key, value))) == 1

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        if expected is None:
            if new is None:
                return await self.get(table, key) is None
            return await self.put_new(table, key, new)
        row = {"table": table, "key": key, "expected": expected}
        if new is None:
            return await self._changed(_DELETE_SAME, row) == 1
        return await self._changed(_SWAP, {**row, "value": new, "now": self._clock.now_ms()}) == 1

    async def take(self, table: str, key: bytes) -> bytes | None:
        rows = await self._rows(_TAKE, {"table": table, "key": key}, writing=True)
        return cast(bytes, rows[0][0]) if rows else None

    async def transaction(self, writes: Sequence[Write]) -> None:
        statements = [*_history(writes), *self._table_rows(writes)]
        if len(statements) == 1:
            # A statement by itself is its own transaction: one journey to the server, not three.
            await self._changed(*statements[0])
            return

        async def commit(link: Link) -> None:
            async with link.pipeline(), link.transaction():
                for sql, values in statements:
                    await link.execute(sql, values)

        if statements:
            await self._links.run(commit, writing=True)

    async def begin_run(self, row: RunRow) -> bool:
        return await self._changed(_BEGIN_RUN, _run_values(row)) == 1

    async def get_run(self, run_id: str) -> RunRow | None:
        rows = await self._rows(_GET_RUN, {"run_id": run_id})
        return _run_row(rows[0]) if rows else None

    async def finished_runs(self, session_key: str, limit: int) -> RunRows:
        rows = await self._rows(_FINISHED, {"session_key": session_key, "limit": limit})
        return [_run_row(row) for row in rows]

    async def sweep_runs(self, *, before_ms: int, keep_per_session: int) -> int:
        return await self._changed(_SWEEP, {"before": before_ms, "keep": keep_per_session})

    async def _rows(
        self, sql: str, values: Mapping[str, object], *, writing: bool = False
    ) -> Found:
        async def fetch(link: Link) -> Found:
            return await (await _execute(link, sql, values)).fetchall()

        return await self._links.run(fetch, writing=writing)

    async def _changed(self, sql: str, values: Mapping[str, object]) -> int:
        async def execute(link: Link) -> int:
            return (await _execute(link, sql, values)).rowcount

        return await self._links.run(execute, writing=True)

    def _table_rows(self, writes: Sequence[Write]) -> Iterator[Statement]:
        """The last write of each key, in the order of the keys."""
        last: dict[tuple[str, bytes], tuple[int, Put | Delete]] = {}
        for place, write in enumerate(writes):
            if isinstance(write, Put | Delete):
                last[write.table, write.key] = (place, write)
        first = True
        for _, (place, write) in sorted(last.items()):
            if isinstance(write, Delete):
                yield _DELETE, {"table": write.table, "key": write.key}
            else:
                yield _PUT, self._values(write, first=first, place=place)
                first = False

    def _values(self, put: Put, *, first: bool = True, place: int = 0) -> dict[str, object]:
        return {
            "table": put.table,
            "key": put.key,
            "value": put.value,
            "now": self._clock.now_ms(),
            "first": first,
            "place": place,
        }


async def _execute(link: Link, sql: str, values: Mapping[str, object]) -> AsyncCursor[Row]:
    # Binary, because bytes would travel as text of twice the size.
    return await link.execute(sql, values, binary=True)


def _history(writes: Sequence[Write]) -> Iterator[Statement]:
    """Ends of runs in the order of their ids; only the removal of a session's stays between what
    is before and after it."""
    ends: dict[str, RunRow] = {}
    for write in writes:
        if isinstance(write, FinishRun):
            ends[write.row.run_id] = write.row
        elif isinstance(write, DeleteRuns):
            yield from _ends(ends)
            ends = {}
            yield _DELETE_RUNS, {"session_key": write.session_key}
    yield from _ends(ends)


def _ends(rows: Mapping[str, RunRow]) -> Iterator[Statement]:
    for _, row in sorted(rows.items(), key=lambda item: item[0]):
        yield _FINISH_RUN, _run_values(row)


def _run_values(row: RunRow) -> dict[str, object]:
    return {
        "run_id": row.run_id,
        "session_key": row.session_key,
        "started_at_ms": row.started_at_ms,
        "digest": row.digest,
        "finished_at_ms": row.finished_at_ms,
        "summary": row.summary,
    }


def _run_row(row: Row) -> RunRow:
    return RunRow(*cast(tuple[str, str, int, bytes | None, int | None, bytes | None], row))
