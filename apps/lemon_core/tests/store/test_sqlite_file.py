"""Checks and copies of a live file (specification lemon_core 8.2)."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from lemon_core.store import RunStore, Store, StoreCorrupt, StoreUnavailable
from lemon_core.store.sqlite_file import back_up, connect, create_private, quick_check, reading
from lemon_core.testing import FakeClock
from lemon_core.tests.processes import python, read_line
from lemon_core.tests.store.backends import make_store

pytestmark = pytest.mark.anyio

# What other programs of Lemon do beside the one that writes: look, check, copy, and leave.
VISITOR = """
import sys, anyio
from pathlib import Path
from lemon_core.clock import SystemClock
from lemon_core.store import StoreSettings, open_store
from lemon_core.store.sqlite_file import quick_check

async def main():
    file = Path(sys.argv[1])
    for number in range(10):
        async with open_store(StoreSettings("sqlite", file), SystemClock()) as store:
            await store.list("things")
            await store.put("secrets", number, number)
        found = await quick_check(file)
        assert found == [], found
    print("done", flush=True)

anyio.run(main)
"""


@pytest.fixture
def backend_name() -> str:
    """This file is about SQLite alone."""
    return "sqlite"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The database of the fixture `store`."""
    return tmp_path / "store.sqlite3"


def spoil(file: Path, page: int) -> None:
    """Overwrite a page of a closed file with noise."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        size = db.execute("PRAGMA page_size").fetchone()[0]
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xa5" * size)


def root_page(file: Path, name: str) -> int:
    with closing(sqlite3.connect(file)) as db:
        row = db.execute("SELECT rootpage FROM sqlite_master WHERE name=?", (name,)).fetchone()
    page: int = row[0]
    return page


@pytest.mark.behaviour("lemon_core.102")
async def test_a_sound_file_has_no_lines_and_a_damaged_one_tells(
    store: Store, file: Path, clock: FakeClock
) -> None:
    await store.put("things", "k", 1)
    assert await quick_check(file) == []
    await store.close()
    spoil(file, root_page(file, "lemon_store_kv"))
    lines = await quick_check(file)
    assert lines
    assert all(line.startswith(f"{file}: ") and "\n" not in line for line in lines)
    again = make_store("sqlite", file.parent, clock)
    await again.open()
    with pytest.raises(StoreCorrupt, match=str(file)):
        await again.get("things", "k")
    await again.close()


@pytest.mark.behaviour("lemon_core.102")
async def test_a_damaged_index_is_told_and_hides_no_record(
    store: Store, file: Path, clock: FakeClock
) -> None:
    runs = RunStore(store, clock)
    for number in range(3):
        await runs.finalize(f"run_{number}", {"session_key": "s", "completed": {"ok": True}})
    await store.close()
    spoil(file, root_page(file, "run_history_session"))
    assert await quick_check(file) != []
    again = make_store("sqlite", file.parent, clock)
    await again.open()
    with pytest.raises(StoreCorrupt):
        await RunStore(again, clock).history("s")
    for number in range(3):
        assert await RunStore(again, clock).get(f"run_{number}") is not None
    await again.close()


@pytest.mark.behaviour("lemon_core.102")
async def test_a_damaged_row_of_the_sessions_index_is_told_and_hides_no_run(
    store: Store, clock: FakeClock
) -> None:
    runs = RunStore(store, clock)
    await runs.finalize("run_1", {"session_key": "s", "completed": {"ok": True}})
    await store.put("sessions_index", "s", {"session_key": "s"})
    with pytest.raises(StoreCorrupt):
        await runs.list_sessions()
    assert [record.run_id for record in await runs.history("s")] == ["run_1"]


async def test_what_is_no_database_is_a_line_and_what_is_absent_an_error(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"this is no database, and long enough to be read as one" * 20)
    lines = await quick_check(noise)
    assert len(lines) == 1
    assert lines[0].startswith(f"{noise}: ")
    absent = tmp_path / "absent.db"
    with pytest.raises(StoreUnavailable, match=str(absent)):
        await quick_check(absent)
    assert not absent.exists()


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a b?.db"
    create_private(file)
    with closing(connect(file)) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreUnavailable), reading(file) as db:
        db.execute("INSERT INTO t VALUES (1)")
    with reading(file) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.behaviour("lemon_core.102")
async def test_a_copy_of_a_live_file_is_whole_and_private(store: Store, file: Path) -> None:
    """Also of what is still in the log beside the file and of nothing that is not committed."""
    target = file.with_name("copy.db")
    await store.put("things", "k", 1)
    with closing(connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO lemon_store_kv VALUES ('things', x'00', x'00', 1)")
        with closing(connect(file)) as source:
            back_up(source, target)
        other.execute("ROLLBACK")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with closing(sqlite3.connect(target)) as copy:
        rows = copy.execute("SELECT key_blob, value_blob FROM lemon_store_kv").fetchall()
    assert rows == [(b'"k"', b"1")]


def test_a_copy_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("earlier")
    db = sqlite3.connect(":memory:")
    db.close()
    with pytest.raises(sqlite3.ProgrammingError):
        back_up(db, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("copy.db", "earlier")
    ]


@pytest.fixture
async def busy(store: Store) -> AsyncIterator[list[int]]:
    """A writer at work; the list holds what was confirmed."""
    confirmed: list[int] = []

    async def write() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            await store.put("things", len(confirmed), len(confirmed))
            confirmed.append(len(confirmed))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        yield confirmed
        tasks.cancel_scope.cancel()


@pytest.mark.behaviour("lemon_core.102")
async def test_programs_that_come_and_go_do_not_damage_a_file_under_its_writer(
    store: Store, busy: list[int], file: Path
) -> None:
    def visit() -> None:
        with python(VISITOR, str(file)) as first, python(VISITOR, str(file)) as second:
            assert read_line(first) == "done"
            assert read_line(second) == "done"

    with anyio.fail_after(30):
        await anyio.to_thread.run_sync(visit)
    count = len(busy)
    assert count > 0
    assert await quick_check(file) == []
    things = dict(await store.list("things"))
    assert all(things[number] == number for number in range(count))
    assert len(await store.list("secrets")) == 10
