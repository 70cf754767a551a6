"""The tables of the store's file, and the way from those of an older version to them.

The file says in `lemon_store_meta` which format it has. A newer one is refused untouched. An older
one is copied to `<file>.v<format>.bak` by the database itself and then brought here step by step in
one transaction. For that nobody else may have the file open: a version that knows only the old
format would go on with what it no longer understands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lemon_core.logs import get_logger
from lemon_core.store.errors import StoreBusy, StoreCorrupt, StoreTooNew
from lemon_core.store.sqlite_file import back_up, connect, create_private, translate

log = get_logger("lemon_core.store")

Step = Callable[[sqlite3.Connection], None]

# Runs of a session in order, and which of them ended: history and its sweep read the summaries of
# no other run.
_HISTORY_INDEX = (
    "CREATE INDEX IF NOT EXISTS run_history_session"
    " ON run_history (session_key, started_at_ms, run_id, finished_at_ms)"
)
_META = "CREATE TABLE IF NOT EXISTS lemon_store_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS lemon_store_kv ("
    " table_name TEXT NOT NULL, key_blob BLOB NOT NULL, value_blob BLOB NOT NULL,"
    " updated_at_ms INTEGER NOT NULL, PRIMARY KEY (table_name, key_blob))",
    "CREATE TABLE IF NOT EXISTS run_history ("
    " run_id TEXT PRIMARY KEY, session_key TEXT NOT NULL, started_at_ms INTEGER NOT NULL,"
    " digest BLOB, finished_at_ms INTEGER, summary_blob BLOB)",
    _HISTORY_INDEX,
    "CREATE INDEX IF NOT EXISTS run_history_age ON run_history (started_at_ms)",
)


def _wider_history_index(db: sqlite3.Connection) -> None:
    db.execute("DROP INDEX IF EXISTS run_history_session")
    db.execute(_HISTORY_INDEX)


MIGRATIONS: Final[Mapping[int, Step]] = MappingProxyType({1: _wider_history_index})
"""By format: what makes the next format of it."""

FORMAT: Final = 2
"""Version of the tables above."""


def prepare(
    path: Path, *, busy_timeout_ms: int = 5_000, steps: Mapping[int, Step] = MIGRATIONS
) -> None:
    """Make the file and its tables, or bring an older file here, with a copy left beside it.

    Raises `StoreTooNew`, `StoreBusy` when an older file is in use elsewhere, and other
    `StoreError`s; then the file is as it was.
    """
    create_private(path)
    try:
        with closing(connect(path, busy_timeout_ms=busy_timeout_ms)) as db:
            found = _create(db, path)
        if found < FORMAT:
            _migrate(path, busy_timeout_ms, steps)
    except sqlite3.Error as exc:
        raise translate(path, exc) from exc


def _create(db: sqlite3.Connection, path: Path) -> int:
    """The format of the file; a new one gets the tables."""
    db.execute(_META)
    found = _stored_format(db, path)
    if found is not None:
        return found
    db.execute("BEGIN IMMEDIATE")
    found = _stored_format(db, path)  # another process may have made them since
    if found is None:
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute("INSERT INTO lemon_store_meta VALUES ('format', ?)", (str(FORMAT),))
    db.execute("COMMIT")
    return FORMAT if found is None else found


def _stored_format(db: sqlite3.Connection, path: Path) -> int | None:
    row = db.execute("SELECT value FROM lemon_store_meta WHERE name='format'").fetchone()
    if row is None:
        return None
    if not str(row[0]).isdecimal():
        raise StoreCorrupt(f"{path}: its format version reads {row[0]!r}")
    if int(row[0]) > FORMAT:
        raise StoreTooNew(str(path), int(row[0]), FORMAT)
    return int(row[0])


def _migrate(path: Path, busy_timeout_ms: int, steps: Mapping[int, Step]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA busy_timeout={busy_timeout_ms:d}")
        # Set before the first access, this asks for the whole file, and keeps it to the end.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        try:
            found = _stored_format(db, path)
        except sqlite3.OperationalError as exc:
            if not isinstance(translate(path, exc), StoreBusy):
                raise
            raise StoreBusy(
                f"{path}: an older Lemon made this database and something still uses it: stop Lemon"
                " and try again, so that the database can be brought up to date"
            ) from exc
        if found is None or found == FORMAT:
            return  # somebody else was quicker
        backup = path.with_name(f"{path.name}.v{found}.bak")
        back_up(db, backup)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        for version in range(found, FORMAT):
            steps[version](db)
        db.execute("UPDATE lemon_store_meta SET value=? WHERE name='format'", (str(FORMAT),))
        db.execute("COMMIT")
    log.info("store.migrated", path=str(path), found=found, format=FORMAT, backup=str(backup))
