"""What only a file can show (specification lemon_core 8.1, 8.2; DESIGN rulings 21)."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import orjson
import pytest

from lemon_core.store import (
    Store,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    StoreUnavailable,
)
from lemon_core.store.sqlite import SqliteBackend
from lemon_core.store.sqlite_file import connect, database_file
from lemon_core.store.sqlite_schema import FORMAT
from lemon_core.testing import FakeClock
from lemon_core.tests.processes import python, read_line
from lemon_core.tests.store.backends import make_store

pytestmark = pytest.mark.anyio

WRITER = """
import sys, anyio
from pathlib import Path
from lemon_core.clock import SystemClock
from lemon_core.store import RunStore, StoreSettings, open_store

async def main():
    async with open_store(StoreSettings("sqlite", Path(sys.argv[1])), SystemClock()) as store:
        await store.put("things", "k", "confirmed")
        await RunStore(store, SystemClock()).begin("run_1", b"digest", session_key="s")
        print("confirmed", flush=True)
        await anyio.sleep_forever()

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


@pytest.mark.behaviour("lemon_core.22", "lemon_core.45")
async def test_what_was_confirmed_before_sigkill_is_there_afterwards(
    tmp_path: Path, clock: FakeClock
) -> None:
    with python(WRITER, str(tmp_path)) as process:
        assert read_line(process) == "confirmed"
        process.kill()
        process.wait(timeout=5)
    store = make_store("sqlite", tmp_path, clock)
    await store.open()
    assert await store.get("things", "k") == "confirmed"
    mark = await store.backend.get_run("run_1")
    assert mark is not None
    assert (mark.digest, mark.session_key, mark.summary) == (b"digest", "s", None)
    await store.close()


@pytest.mark.behaviour("lemon_core.22")
async def test_everything_is_there_after_reopening(tmp_path: Path, clock: FakeClock) -> None:
    first = make_store("sqlite", tmp_path, clock)
    await first.open()
    await first.put("things", ("k", 1), (1, b"x"))
    await first.put("chat", "s", {"a": 1})
    await first.close()
    second = make_store("sqlite", tmp_path, clock)
    await second.open()
    assert await second.get("things", ("k", 1)) == (1, b"x")
    assert await second.get("chat", "s") == {"a": 1}
    await second.close()


@pytest.mark.behaviour("lemon_core.24")
async def test_the_file_holds_json_and_no_pickle(store: Store, file: Path) -> None:
    await store.put("things", ("k", 1), (1, b"x", {"a": None}))
    await store.put("chat", "s", "text")
    await store.close()
    with sqlite3.connect(file) as db:
        rows = db.execute("SELECT key_blob, value_blob FROM lemon_store_kv").fetchall()
    db.close()
    assert len(rows) == 2
    for row in rows:
        for blob in row:
            orjson.loads(blob)


async def test_the_file_is_private_and_syncs_fully(store: Store, file: Path) -> None:
    await store.put("things", "k", 1)
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    db = connect(file)
    pragmas = {
        name: db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "temp_store", "busy_timeout")
    }
    db.close()
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "temp_store": 2,
        "busy_timeout": 5000,
    }


def test_a_path_is_a_file_by_its_suffix_and_else_a_folder() -> None:
    assert database_file(Path("/x/a.db")) == Path("/x/a.db")
    assert database_file(Path("/x/a.sqlite")) == Path("/x/a.sqlite")
    assert database_file(Path("/x/store")) == Path("/x/store/store.sqlite3")


def damage(file: Path, table: str) -> None:
    """Overwrite the values of `table` with what no codec wrote."""
    with sqlite3.connect(file) as db:
        db.execute("UPDATE lemon_store_kv SET value_blob=? WHERE table_name=?", (b"{", table))
    db.close()


@pytest.mark.behaviour("lemon_core.23")
async def test_a_corrupt_row_raises_and_never_reads_as_missing(store: Store, file: Path) -> None:
    await store.put("things", "k", 1)
    damage(file, "things")
    for read in (store.get("things", "k"), store.list("things"), store.take("things", "k")):
        with pytest.raises(StoreCorrupt):
            await read


@pytest.mark.behaviour("lemon_core.23")
async def test_a_corrupt_mirrored_row_raises_too(
    tmp_path: Path, file: Path, clock: FakeClock
) -> None:
    first = make_store("sqlite", tmp_path, clock)
    await first.open()
    await first.put("chat", "s", 1)
    await first.close()
    damage(file, "chat")
    second = make_store("sqlite", tmp_path, clock)
    await second.open()
    with pytest.raises(StoreCorrupt):
        await second.get("chat", "s", "default")
    await second.close()


@pytest.fixture
async def hurried(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    """A store that gives up after a moment."""
    opened = Store(SqliteBackend(tmp_path / "store.sqlite3", clock, timeout_ms=50))
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.behaviour("lemon_core.23")
async def test_a_busy_database_refuses_and_stays_usable(hurried: Store, file: Path) -> None:
    await hurried.put("chat", "s", "old")
    other = connect(file)
    other.execute("BEGIN IMMEDIATE")
    with anyio.fail_after(5), pytest.raises(StoreBusy) as caught:
        await hurried.put("chat", "s", "refused")
    assert str(file) in str(caught.value)
    assert await hurried.get("chat", "s") == "old"
    other.execute("ROLLBACK")
    other.close()
    await hurried.put("chat", "s", "new")
    assert await hurried.get("chat", "s") == "new"
    assert await hurried.backend.get("chat", b'"s"') == b'"new"'


async def test_a_newer_file_is_refused_and_untouched(
    tmp_path: Path, file: Path, clock: FakeClock
) -> None:
    first = make_store("sqlite", tmp_path, clock)
    await first.open()
    await first.close()
    with sqlite3.connect(file) as db:
        db.execute("UPDATE lemon_store_meta SET value=? WHERE name='format'", (str(FORMAT + 1),))
        db.execute("DROP TABLE run_history")
    db.close()
    with pytest.raises(StoreTooNew) as caught:
        await make_store("sqlite", tmp_path, clock).open()
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "newer Lemon" in message
    assert "\n" not in message
    with sqlite3.connect(file) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    assert "run_history" not in tables


async def test_a_file_that_is_no_database_is_told_by_path(
    tmp_path: Path, file: Path, clock: FakeClock
) -> None:
    await anyio.Path(file).write_bytes(
        b"this is not a database, and it is long enough to be read as one" * 20
    )
    with pytest.raises(StoreCorrupt, match=str(file)):
        await make_store("sqlite", tmp_path, clock).open()


async def test_a_folder_that_cannot_be_made_is_told_by_path(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreUnavailable, match="taken"):
        await make_store("sqlite", tmp_path / "taken" / "store", clock).open()


class SmallDisk(SqliteBackend):
    """A backend whose file may hold a few pages only: what a full disk answers to SQLite."""

    def _connect(self) -> sqlite3.Connection:
        db = super()._connect()
        db.execute("PRAGMA max_page_count=30")
        return db


async def test_a_full_disk_is_one_clear_line_and_loses_nothing(
    file: Path, clock: FakeClock
) -> None:
    store = Store(SmallDisk(file, clock))
    await store.open()
    await store.put("things", "small", 1)
    with pytest.raises(StoreUnavailable) as caught:
        await store.put("things", "large", "x" * 500_000)
    assert str(caught.value) == (f"{file}: the disk is full: nothing was written, free some space")
    await store.put("things", "small", 2)
    assert await store.list("things") == [("small", 2)]
    await store.close()


async def test_a_failing_write_takes_no_neighbour_along(store: Store) -> None:
    """Writes that wait together are one commit, but each stands for itself."""
    outcomes: list[str] = []

    async def write(number: int) -> None:
        try:
            # A key of the wrong SQL type is the one write that the table itself refuses.
            key = None if number == 3 else f"k{number}".encode()
            await store.backend.put_new("things", key, b"1")  # type: ignore[arg-type]
            outcomes.append("kept")
        except StoreError:
            outcomes.append("refused")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(write, number)
    assert sorted(outcomes) == ["kept"] * 7 + ["refused"]
    assert len(await store.backend.list("things")) == 7


async def test_a_cancelled_caller_leaves_mirror_and_file_equal(store: Store) -> None:
    """The write may land or not, but memory and disk tell the same."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(store.put, "chat", f"s{number}", number)
            await anyio.lowlevel.checkpoint()
            scope.cancel()
    on_disk = dict(await store.backend.list("chat"))
    mirrored = {f'"{key}"'.encode(): str(value).encode() for key, value in await store.list("chat")}
    assert mirrored == on_disk


async def test_a_cancelled_task_leaves_mirror_and_file_equal(store: Store) -> None:
    """As above for tasks that a server cancels, which no cancel scope holds off."""
    loop = asyncio.get_running_loop()
    for number in range(20):
        task = loop.create_task(store.put("chat", f"s{number}", number))
        await anyio.lowlevel.checkpoint()
        task.cancel()
        await asyncio.wait([task])
    on_disk = dict(await store.backend.list("chat"))
    mirrored = {f'"{key}"'.encode(): str(value).encode() for key, value in await store.list("chat")}
    assert mirrored == on_disk
    assert len(on_disk) == 20


async def test_reading_needs_no_writer(store: Store, file: Path) -> None:
    """A reader goes on while another process holds the write lock."""
    await store.put("things", "k", 1)
    other = connect(file)
    other.execute("BEGIN IMMEDIATE")
    with anyio.fail_after(5):
        assert await store.get("things", "k") == 1
    other.close()


async def test_closing_writes_what_was_submitted(tmp_path: Path, clock: FakeClock) -> None:
    store = make_store("sqlite", tmp_path, clock)
    await store.open()
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(store.put, "things", number, number)
        await anyio.lowlevel.checkpoint()
        await store.close()
    await store.close()
    again = make_store("sqlite", tmp_path, clock)
    await again.open()
    assert len(await again.list("things")) == 30
    await again.close()


def test_nothing_is_opened_before_open(tmp_path: Path, clock: FakeClock) -> None:
    make_store("sqlite", tmp_path, clock)
    assert list(tmp_path.iterdir()) == []
