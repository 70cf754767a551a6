"""The backend without a file: for tests, and for libraries that keep nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from lemon_core.store.errors import StoreUnavailable


class MemoryBackend:
    """Everything in dictionaries. No method waits, so each is one atomic step."""

    shared = False

    def __init__(self) -> None:
        # Insertion order is the order of writing: a written key moves to the end.
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._runs: dict[str, RunRow] = {}
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    async def ping(self) -> None:
        self._check()

    async def get(self, table: str, key: bytes) -> bytes | None:
        return self._table(table).get(key)

    async def list(self, table: str) -> Rows:
        return sorted(self._table(table).items())

    async def list_recent(self, table: str, limit: int) -> Rows:
        return list(reversed(self._table(table).items()))[:limit]

    async def put_new(self, table: str, key: bytes, value: bytes) -> bool:
        if key in self._table(table):
            return False
        self._apply(Put(table, key, value))
        return True

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        if self._table(table).get(key) != expected:
            return False
        self._apply(Delete(table, key) if new is None else Put(table, key, new))
        return True

    async def take(self, table: str, key: bytes) -> bytes | None:
        return self._table(table).pop(key, None)

    async def transaction(self, writes: Sequence[Write]) -> None:
        self._check()
        for write in writes:
            self._apply(write)

    async def begin_run(self, row: RunRow) -> bool:
        self._check()
        return self._runs.setdefault(row.run_id, row) is row

    async def get_run(self, run_id: str) -> RunRow | None:
        self._check()
        return self._runs.get(run_id)

    async def finished_runs(self, session_key: str, limit: int) -> RunRows:
        self._check()
        return self._finished(session_key)[:limit]

    async def sweep_runs(self, *, before_ms: int, keep_per_session: int) -> int:
        self._check()
        old = [row for row in self._runs.values() if row.started_at_ms < before_ms]
        for session_key in {row.session_key for row in self._runs.values()}:
            old += self._finished(session_key)[keep_per_session:]
        return self._drop(old)

    def _finished(self, session_key: str) -> RunRows:
        rows = [r for r in self._runs.values() if r.session_key == session_key and r.summary]
        return sorted(rows, key=lambda row: (row.started_at_ms, row.run_id), reverse=True)

    def _drop(self, rows: Sequence[RunRow]) -> int:
        return sum(self._runs.pop(row.run_id, None) is not None for row in rows)

    def _apply(self, write: Write) -> None:
        match write:
            case Put(table, key, value):
                rows = self._table(table)
                rows.pop(key, None)
                rows[key] = value
            case Delete(table, key):
                self._table(table).pop(key, None)
            case FinishRun(row):
                mark = self._runs.get(row.run_id)
                if mark is not None:
                    row = replace(row, started_at_ms=mark.started_at_ms, digest=mark.digest)
                self._runs[row.run_id] = row
            case DeleteRuns(session_key):
                self._drop([r for r in self._runs.values() if r.session_key == session_key])

    def _table(self, name: str) -> dict[bytes, bytes]:
        self._check()
        return self._tables.setdefault(name, {})

    def _check(self) -> None:
        if not self._open:
            raise StoreUnavailable("the store is not open")
