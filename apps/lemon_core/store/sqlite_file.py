"""Opening SQLite files the one way that Lemon does, and naming their faults."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

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
