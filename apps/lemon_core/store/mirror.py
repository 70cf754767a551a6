"""Copies of whole tables in memory: pure state, filled and changed by the store."""

from __future__ import annotations

from collections.abc import Iterable

from lemon_core.store.backend import Rows
from lemon_core.store.errors import StoreError, StoreUnavailable

MAX_ROWS = 20_000
"""A table that grows past this is read from the backend again: memory is bounded."""


class Mirror:
    """What the backend holds of some tables, as bytes.

    A key is *distrusted* after a write to it whose outcome nobody knows; it is then read from the
    backend until the next write of it is confirmed.
    """

    def __init__(self, tables: Iterable[str], *, max_rows: int = MAX_ROWS) -> None:
        self._wanted = tuple(tables)
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._filling: dict[str, dict[bytes, bytes | None]] = {}
        self._distrusted: set[tuple[str, bytes]] = set()
        self._max_rows = max_rows

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are to be mirrored or are."""
        return tuple(dict.fromkeys((*self._wanted, *self._tables)))

    def start_fill(self, table: str) -> None:
        """Remember the writes to `table` until `fill`: the rows read meanwhile may lack them."""
        self._filling[table] = {}

    def fill(self, table: str, rows: Rows) -> None:
        """Start mirroring `table`, of which the backend gave `rows`."""
        meanwhile = self._filling.pop(table, {})
        if len(rows) > self._max_rows:
            return
        self._tables[table] = {_compact(key): _compact(value) for key, value in rows}
        for key, value in meanwhile.items():
            self.set(table, key, value)

    def knows(self, table: str, key: bytes) -> bool:
        """True when the mirror's answer for `key`, absence included, is the backend's."""
        return table in self._tables and (table, key) not in self._distrusted

    def get(self, table: str, key: bytes) -> bytes | None:
        """The mirrored value; None also when the mirror does not know."""
        rows = self._tables.get(table)
        if rows is None or (self._distrusted and (table, key) in self._distrusted):
            return None
        return rows.get(key)

    def rows(self, table: str) -> Rows | None:
        """All rows in key order, or None when the backend has to be asked."""
        rows = self._tables.get(table)
        if rows is None or any(name == table for name, _ in self._distrusted):
            return None
        return sorted(rows.items())

    def set(self, table: str, key: bytes, value: bytes | None) -> None:
        """Follow a confirmed write; None is a delete."""
        rows = self._tables.get(table)
        if rows is None:
            if table in self._filling:
                self._filling[table][key] = value
            return
        self._distrusted.discard((table, key))
        if value is None:
            rows.pop(key, None)
            return
        # A key that is there already keeps its first object.
        rows[key if key in rows else _compact(key)] = _compact(value)
        if len(rows) > self._max_rows:
            del self._tables[table]

    def distrust_after(self, error: StoreError, keys: Iterable[tuple[str, bytes]]) -> None:
        """Stop answering for `keys` when `error` leaves their write open."""
        if isinstance(error, StoreUnavailable) and error.outcome_unknown:
            self._distrusted.update(key for key in keys if key[0] in self._tables)


def _compact(data: bytes) -> bytes:
    """A copy that takes no more room than its bytes: what orjson gives keeps a buffer of 4 kB."""
    return bytes(memoryview(data))
