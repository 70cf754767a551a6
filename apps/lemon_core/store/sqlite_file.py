"""Opening SQLite files the one way that Lemon does, copying and checking them, naming their faults.

Every app that keeps a database of its own opens it with `create_private` and `connect`. Nothing
opens a live file as a plain one: closing it would drop the locks that SQLite holds on it in this
process. A copy is made by the database itself (`back_up`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio.to_thread

from lemon_core.store.errors import StoreBusy, StoreCorrupt, StoreError, StoreUnavailable

FILE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def database_file(path: Path) -> Path:
    """The file that a configured store path means: itself, or `store.sqlite3` in a directory."""
    return path if path.suffix in FILE_SUFFIXES else path / "store.sqlite3"


def create_private(path: Path) -> None:
    """Make sure that `path` exists, readable by its owner alone; SQLite gives its side files the
    same mode. Raises `StoreUnavailable`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return  # somebody else was quicker
    except OSError as exc:
        raise StoreUnavailable(
            f"{path}: the database cannot be created ({exc.strerror}): check the folder's "
            "permissions and the free space, or set LEMON_STORE_PATH"
        ) from exc


def connect(path: Path, *, busy_timeout_ms: int = 5_000) -> sqlite3.Connection:
    """A connection in autocommit mode with Lemon's pragmas; raises `sqlite3.Error`.

    WAL lets readers go on beside the writer; `synchronous=FULL` makes a commit survive the loss of
    power, not only of the process.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout={busy_timeout_ms:d}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA temp_store=MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for the block that cannot change the file; it has to exist.

    Raises `StoreError`, for faults inside the block too.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA busy_timeout=5000")
            yield connection
    except sqlite3.Error as exc:
        raise translate(path, exc) from exc


def back_up(connection: sqlite3.Connection, target: Path) -> None:
    """Copy the connection's database to `target` (mode 0600), which is whole once it is there.

    Uses SQLite's own backup, which reads through its locks and its log; the connection must not be
    writing. Raises `sqlite3.Error`, `StoreBusy` and `StoreUnavailable`; then `target` is as it was.
    """

    def progress(status: int, remaining: int, total: int) -> None:
        # Python would try again for ever.
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusy(f"{target}: nothing was copied: the database is in use")

    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    create_private(partial)
    try:
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy, progress=progress)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


async def quick_check(path: Path) -> list[str]:
    """What SQLite finds wrong with the file, one line each; empty for a sound one.

    Reads all of it, beside whoever has it open; raises `StoreUnavailable` or `StoreBusy` when that
    is not possible.
    """

    def check() -> list[str]:
        try:
            with reading(path) as connection:
                found = connection.execute("PRAGMA quick_check").fetchall()
        except StoreCorrupt as exc:
            return [str(exc)]
        lines = [line for (text,) in found for line in str(text).splitlines()]
        return [] if lines == ["ok"] else [f"{path}: {line}" for line in lines]

    return await anyio.to_thread.run_sync(check)


def translate(path: Path, exc: sqlite3.Error) -> StoreError:
    """The store's word for a fault of SQLite, with the file's path and what to do."""
    name = getattr(exc, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{path}: another process holds the database: nothing was written")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"{path}: not a readable database ({exc}): move the file away to start afresh"
        )
    if name.startswith("SQLITE_FULL"):
        return StoreUnavailable(f"{path}: the disk is full: nothing was written, free some space")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreUnavailable(
            f"{path}: the database cannot be written ({exc}): check permissions"
        )
    return StoreUnavailable(f"{path}: the database failed ({name or type(exc).__name__}: {exc})")
