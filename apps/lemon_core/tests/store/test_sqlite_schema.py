"""Formats of the store's file and the way between them (specification lemon_core 8)."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lemon_core.store import StoreBusy, StoreUnavailable
from lemon_core.store.backend import RunRow
from lemon_core.store.sqlite import SqliteBackend
from lemon_core.store.sqlite_file import connect
from lemon_core.store.sqlite_schema import FORMAT, prepare
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

FIRST_FORMAT = """
CREATE TABLE lemon_store_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE lemon_store_kv (table_name TEXT NOT NULL, key_blob BLOB NOT NULL,
  value_blob BLOB NOT NULL, updated_at_ms INTEGER NOT NULL, PRIMARY KEY (table_name, key_blob));
CREATE TABLE run_history (run_id TEXT PRIMARY KEY, session_key TEXT NOT NULL,
  started_at_ms INTEGER NOT NULL, digest BLOB, finished_at_ms INTEGER, summary_blob BLOB);
CREATE INDEX run_history_session ON run_history (session_key, started_at_ms);
CREATE INDEX run_history_age ON run_history (started_at_ms);
INSERT INTO lemon_store_meta VALUES ('format', '1');
INSERT INTO lemon_store_kv VALUES ('things', CAST('"k"' AS BLOB), CAST('1' AS BLOB), 5);
INSERT INTO run_history VALUES ('run_1', 's', 7, NULL, 9, CAST('{}' AS BLOB));
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@pytest.fixture
def old(file: Path) -> Path:
    """A file of the first format, as it was closed by the Lemon that made it."""
    with closing(connect(file)) as db:
        db.executescript(FIRST_FORMAT)
    return file


@pytest.fixture
def backup(file: Path) -> Path:
    return file.with_name("store.sqlite3.v1.bak")


def stored(file: Path, sql: str) -> list[object]:
    """The first column of what the file answers."""
    with closing(sqlite3.connect(file)) as db:
        return [row[0] for row in db.execute(sql)]


def stored_format(file: Path) -> list[object]:
    return stored(file, "SELECT value FROM lemon_store_meta WHERE name='format'")


def index_of(file: Path) -> str:
    found = stored(file, "SELECT sql FROM sqlite_master WHERE name='run_history_session'")
    return str(found[0])


@pytest.mark.behaviour("lemon_core.102")
async def test_an_older_file_is_copied_and_brought_up_to_date(
    old: Path, backup: Path, clock: FakeClock
) -> None:
    backend = SqliteBackend(old, clock)
    await backend.open()
    assert await backend.get("things", b'"k"') == b"1"
    assert await backend.finished_runs("s", 5) == [RunRow("run_1", "s", 7, None, 9, b"{}")]
    await backend.close()
    assert stored_format(old) == [str(FORMAT)]
    assert "finished_at_ms" in index_of(old)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stored_format(backup) == ["1"]
    assert stored(backup, "SELECT run_id FROM run_history") == ["run_1"]
    assert stored(backup, "PRAGMA integrity_check") == ["ok"]
    assert sorted(path.name for path in old.parent.iterdir()) == [old.name, backup.name]


def test_a_new_file_and_one_of_today_need_no_copy(file: Path) -> None:
    prepare(file)
    prepare(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert stored_format(file) == [str(FORMAT)]


def test_steps_run_in_order_after_the_copy(old: Path, backup: Path) -> None:
    with closing(connect(old)) as db:
        db.execute("UPDATE lemon_store_meta SET value='0'")
    taken: list[tuple[int, bool]] = []
    copy = backup.with_name("store.sqlite3.v0.bak")

    def step(version: int) -> None:
        taken.append((version, copy.exists()))

    prepare(old, steps={1: lambda db: step(1), 0: lambda db: step(0)})
    assert taken == [(0, True), (1, True)]
    assert stored_format(old) == [str(FORMAT)]
    assert stored_format(copy) == ["0"]


def test_a_step_that_fails_leaves_the_file_as_it_was(old: Path, backup: Path) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE run_history")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        prepare(old, steps={1: fail})
    assert stored_format(old) == ["1"]
    assert stored(old, "SELECT run_id FROM run_history") == ["run_1"]
    assert stored_format(backup) == ["1"]
    prepare(old)
    assert stored_format(old) == [str(FORMAT)]


def test_a_full_disk_stops_it_with_one_line_and_no_change(old: Path) -> None:
    def grow(db: sqlite3.Connection) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 1}")
        db.execute("INSERT INTO lemon_store_kv VALUES ('t', x'00', zeroblob(500000), 1)")

    with pytest.raises(StoreUnavailable) as caught:
        prepare(old, steps={1: grow})
    assert str(caught.value) == f"{old}: the disk is full: nothing was written, free some space"
    assert stored_format(old) == ["1"]
    assert stored(old, "SELECT count(*) FROM lemon_store_kv") == [1]


@pytest.fixture
def user(old: Path) -> Iterator[sqlite3.Connection]:
    """An older Lemon that has the file open."""
    with closing(connect(old)) as db:
        db.execute("SELECT * FROM run_history").fetchall()
        yield db


def test_a_file_in_use_is_not_changed_under_its_user(
    old: Path, backup: Path, user: sqlite3.Connection
) -> None:
    with pytest.raises(StoreBusy) as caught:
        prepare(old, busy_timeout_ms=20)
    message = str(caught.value)
    assert message.startswith(f"{old}: an older Lemon made this database")
    assert "\n" not in message
    user.execute("INSERT INTO lemon_store_kv VALUES ('things', x'00', x'00', 6)")
    assert stored_format(old) == ["1"]
    assert not backup.exists()


def test_a_second_older_file_replaces_the_copy_of_the_first(old: Path, backup: Path) -> None:
    backup.write_text("a copy that an earlier attempt left")
    prepare(old)
    assert stored_format(backup) == ["1"]
