"""The store: tables of keys and values over one backend, with mirrors for what is read all the
time.

Three kinds of tables. *Ephemeral* ones (`runs`, `progress`) live in this process only, as plain
objects: what they describe does not outlive it. *Mirrored* ones are also kept in memory, so that
reading them costs no disk; the store is their only writer, and the mirror changes only after the
backend has confirmed. All others are read from the backend each time, and so are all tables of a
backend that other nodes write to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Literal

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.backend import Backend, Delete, DeleteRuns, FinishRun, Put, Rows, Write
from lemon_core.store.codec import Codec, Key, decode_key, encode_key
from lemon_core.store.errors import StoreBusy, StoreError, StoreUnavailable
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.mirror import Mirror

log = get_logger("lemon_core.store")

EPHEMERAL_TABLES: Final = frozenset({"runs", "progress"})
MIRRORED_TABLES: Final = ("chat", "sessions_index")


class Absent(Enum):
    """The type of `ABSENT`: no value at all, as opposed to a stored null."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Which backend carries the store.

    `path` is a file when it ends in `.db`, `.sqlite` or `.sqlite3`, and else a folder. `url` is
    that of a PostgreSQL database; it holds a password, so nothing shows it.
    """

    backend: Literal["memory", "sqlite", "postgres"] = "memory"
    path: Path | None = None
    url: str | None = field(default=None, repr=False)
    timeout_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class PutValue:
    """One write of a transaction: store `value`."""

    table: str
    key: Key
    value: object


@dataclass(frozen=True, slots=True)
class DeleteKey:
    """One write of a transaction: remove `key`."""

    table: str
    key: Key


Items = list[tuple[Key, object]]
"""Keys and values of a table, decoded."""

StoreWrite = PutValue | DeleteKey | FinishRun | DeleteRuns


class Store:
    """Tables by name over `backend`; open it before use. Instances share nothing.

    Keys are text, whole numbers or tuples of them; values are JSON types, tuples, bytes, datetimes
    and models registered with `codec`, and come back equal. Writes raise `StoreError`; reads log
    and give their default when the backend is unavailable or busy, but raise `StoreCorrupt`: a
    damaged record never reads as a missing one.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        mirrored: Iterable[str] = MIRRORED_TABLES,
        ephemeral: Iterable[str] = EPHEMERAL_TABLES,
    ) -> None:
        self.backend = backend
        self.codec = Codec()
        self._ephemeral: dict[str, dict[Key, object]] = {name: {} for name in ephemeral}
        self._mirror = Mirror(() if backend.shared else mirrored)

    @property
    def shared(self) -> bool:
        """True when other nodes write to the same database."""
        return self.backend.shared

    async def open(self) -> None:
        """Open the backend and warm the mirrors."""
        await self.backend.open()
        for table in self._mirror.tables:
            await self._warm(table)

    async def close(self) -> None:
        """Finish what was submitted and close the backend."""
        await self.backend.close()

    async def ping(self) -> None:
        """Return when the backend answers; raises `StoreError`."""
        await self.backend.ping()

    async def register_cached_table(self, table: str) -> None:
        """Mirror `table` too; it is warm when this returns. Nothing of a shared one is mirrored."""
        if self.shared or table in self._ephemeral:
            return
        if table not in self._mirror.tables:
            await self._warm(table)

    def memory_table(self, table: str) -> dict[Key, object]:
        """The live contents of an ephemeral table; KeyError for others."""
        return self._ephemeral[table]

    async def put(self, table: str, key: Key, value: object) -> None:
        """Store `value`, whatever was there."""
        await self.transaction([PutValue(table, key, value)])

    async def delete(self, table: str, key: Key) -> None:
        """Remove `key`; absent is fine."""
        await self.transaction([DeleteKey(table, key)])

    async def transaction(self, writes: Sequence[StoreWrite]) -> None:
        """Commit all of `writes` or none; mirrors and ephemeral tables follow the commit."""
        lowered: list[Write] = []
        kept: list[PutValue | DeleteKey] = []
        for write in writes:
            if isinstance(write, FinishRun | DeleteRuns):
                lowered.append(write)
            elif write.table in self._ephemeral:
                kept.append(write)
            elif isinstance(write, PutValue):
                value = self.codec.encode(write.value)
                lowered.append(Put(write.table, encode_key(write.key), value))
            else:
                lowered.append(Delete(write.table, encode_key(write.key)))
        if lowered:
            await self._commit(lowered)
        for write in kept:
            if isinstance(write, PutValue):
                self._ephemeral[write.table][write.key] = write.value
            else:
                self._ephemeral[write.table].pop(write.key, None)

    async def put_new(self, table: str, key: Key, value: object) -> bool:
        """Store `value` if the key is absent; exactly one of any concurrent callers gets True."""
        return await self.compare_and_swap(table, key, ABSENT, value)

    async def compare_and_swap(
        self, table: str, key: Key, expected: object | Absent, new: object | Absent
    ) -> bool:
        """Replace `expected` by `new` at once; `ABSENT` on either side inserts or deletes."""
        if (rows := self._ephemeral.get(table)) is not None:
            return _swap_object(rows, key, expected, new)
        raw_key = encode_key(key)
        raw_new = None if new is ABSENT else self.codec.encode(new)
        raw_old = None if expected is ABSENT else self.codec.encode(expected)
        try:
            swapped = await self.backend.compare_and_swap(table, raw_key, raw_old, raw_new)
        except StoreError as exc:
            self._mirror.distrust_after(exc, [(table, raw_key)])
            raise
        if swapped:
            self._mirror.set(table, raw_key, raw_new)
        return swapped

    async def take(self, table: str, key: Key, default: object = None) -> object:
        """Read and delete at once; of any concurrent callers one gets the value."""
        if (rows := self._ephemeral.get(table)) is not None:
            return rows.pop(key, default)
        raw_key = encode_key(key)
        try:
            raw = await self.backend.take(table, raw_key)
        except StoreError as exc:
            self._mirror.distrust_after(exc, [(table, raw_key)])
            raise
        self._mirror.set(table, raw_key, None)
        return default if raw is None else self.codec.decode(raw)

    async def get(self, table: str, key: Key, default: object = None) -> object:
        """The value, or `default` when there is none or the backend cannot answer now."""
        try:
            return await self.load(table, key, default)
        except (StoreUnavailable, StoreBusy) as exc:
            log.warning("store.read_failed", table=table, error=str(exc))
            return default

    async def load(self, table: str, key: Key, default: object = None) -> object:
        """As `get`, but raises when the backend cannot answer: where missing and unknown differ."""
        if (rows := self._ephemeral.get(table)) is not None:
            return rows.get(key, default)
        raw_key = encode_key(key)
        raw = self._mirror.get(table, raw_key)
        if raw is None and not self._mirror.knows(table, raw_key):
            raw = await self.backend.get(table, raw_key)
        return default if raw is None else self.codec.decode(raw)

    async def list(self, table: str) -> Items:
        """All keys and values, ordered by stored key; empty when the backend cannot answer now."""
        try:
            return await self.load_all(table)
        except (StoreUnavailable, StoreBusy) as exc:
            log.warning("store.read_failed", table=table, error=str(exc))
            return []

    async def load_all(self, table: str) -> Items:
        """As `list`, but raises when the backend cannot answer."""
        if (rows := self._ephemeral.get(table)) is not None:
            return list(rows.items())
        found = self._mirror.rows(table)
        return self._decoded(await self.backend.list(table) if found is None else found)

    async def list_recent(self, table: str, limit: int) -> Items:
        """The `limit` values written last, newest first; empty when the backend cannot answer."""
        if (rows := self._ephemeral.get(table)) is not None:
            return list(reversed(rows.items()))[:limit]
        try:
            return self._decoded(await self.backend.list_recent(table, limit))
        except (StoreUnavailable, StoreBusy) as exc:
            log.warning("store.read_failed", table=table, error=str(exc))
            return []

    def _decoded(self, rows: Rows) -> Items:
        return [(decode_key(key), self.codec.decode(value)) for key, value in rows]

    async def _warm(self, table: str) -> None:
        self._mirror.start_fill(table)
        self._mirror.fill(table, await self.backend.list(table))

    async def _commit(self, writes: Sequence[Write]) -> None:
        try:
            await self.backend.transaction(writes)
        except StoreError as exc:
            touched = [(w.table, w.key) for w in writes if isinstance(w, Put | Delete)]
            self._mirror.distrust_after(exc, touched)
            raise
        # No await between the backend's answer and this: mirrors change in the order of commits.
        for write in writes:
            if isinstance(write, Put):
                self._mirror.set(write.table, write.key, write.value)
            elif isinstance(write, Delete):
                self._mirror.set(write.table, write.key, None)


def _swap_object(
    rows: dict[Key, object], key: Key, expected: object | Absent, new: object | Absent
) -> bool:
    if rows.get(key, ABSENT) != expected:
        return False
    if new is ABSENT:
        rows.pop(key, None)
    else:
        rows[key] = new
    return True


def backend_for(settings: StoreSettings, clock: Clock) -> Backend:
    """The backend that `settings` names."""
    if settings.backend == "memory":
        return MemoryBackend()
    if settings.backend == "postgres":
        return _postgres(settings, clock)
    from lemon_core.store.sqlite import SqliteBackend  # only where a file is used
    from lemon_core.store.sqlite_file import database_file

    if settings.path is None:
        raise StoreUnavailable("store.path is not set: the sqlite backend needs a file or a folder")
    path = database_file(settings.path)
    return SqliteBackend(path, clock, timeout_ms=settings.timeout_ms)


def _postgres(settings: StoreSettings, clock: Clock) -> Backend:
    from lemon_core.store.postgres import PostgresBackend  # only where a server is used
    from lemon_core.store.postgres_address import PostgresAddress

    if settings.url is None:
        raise StoreUnavailable(
            'store.backend is "postgres", but no database is named: set LEMON_STORE_URL, or '
            "store.url_secret to the name of the secret that holds the URL"
        )
    address = PostgresAddress.parse(settings.url)
    return PostgresBackend(address, clock, timeout_ms=settings.timeout_ms)


@asynccontextmanager
async def open_store(settings: StoreSettings, clock: Clock) -> AsyncIterator[Store]:
    """An open store that is closed, with everything written, when the block ends."""
    store = Store(backend_for(settings, clock))
    await store.open()
    try:
        yield store
    finally:
        await store.close()
