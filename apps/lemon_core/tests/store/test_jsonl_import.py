"""Importing an older store of JSON lines (specification lemon_core 8.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from lemon_core.store import RunStore, StoreUnavailable
from lemon_core.store.jsonl_import import TableCount, migrate_jsonl_to_sqlite
from lemon_core.testing import FakeClock
from lemon_core.tests.store.backends import make_store

pytestmark = pytest.mark.anyio


def line(op: str, key: object, value: object = None, ts: int = 0) -> str:
    return json.dumps({"op": op, "key": key, "value": value, "ts": ts}) + "\n"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """An older store."""
    folder = tmp_path / "old"
    folder.mkdir()
    chat = [
        line("put", "s1", {"last_engine": "lemon"}),
        line("put", "s2", {"last_engine": "lemon"}),
        line("put", "s1", {"last_engine": "lemon", "last_resume_token": "sess_1"}),
        line("delete", "s2"),
        line("delete", "s3"),
        "\n",
    ]
    (folder / "chat.jsonl").write_text("".join(chat))
    tagged = {"__tuple__": [1, {"__bytes__": "AAE="}]}
    things = line("put", ["a", 1], tagged) + line("put", 5, None) + line("put", "5", [1, "x"])
    (folder / "things.jsonl").write_text(things)
    (folder / "progress.jsonl").write_text(line("put", ["s", 5], "run_1"))
    ended = {"session_key": "s1", "duration_ms": 5, "completed": {"ok": True, "answer": "hi"}}
    runs = line("put", "run_1", {"events": [{}], "summary": ended, "started_at": 100}, 200)
    runs += line("put", "run_2", {"events": [{}], "summary": None, "started_at": 100})
    (folder / "runs.jsonl").write_text(runs)
    (folder / "notes.txt").write_text("no table")
    return folder


async def contents(dst: Path, clock: FakeClock, *tables: str) -> dict[str, object]:
    store = make_store("sqlite", dst, clock)
    await store.open()
    found: dict[str, object] = {table: dict(await store.list(table)) for table in tables}
    await store.close()
    return found


async def test_the_last_change_of_each_key_counts(
    src: Path, tmp_path: Path, clock: FakeClock
) -> None:
    dst = tmp_path / "new"
    counts = await migrate_jsonl_to_sqlite(src, dst, clock=clock)
    assert counts == [
        TableCount("chat", lines=5, written=1),
        TableCount("progress", skipped="it described what has ended since"),
        TableCount("runs", skipped="runs are imported on request only"),
        TableCount("things", lines=3, written=3),
    ]
    assert await contents(dst, clock, "chat", "things", "progress") == {
        "chat": {"s1": {"last_engine": "lemon", "last_resume_token": "sess_1"}},
        "things": {("a", 1): (1, b"\x00\x01"), 5: None, "5": [1, "x"]},
        "progress": {},
    }


async def test_bad_lines_are_passed_over_with_a_warning(
    src: Path, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [
        '{"op": "put", "key": "k"',
        "[1]",
        line("move", "k", 1),
        line("put", None, 1),
        line("put", ["k", 1.5], 1),
        '{"op": "put", "key": "k"}',
        line("put", "k", {"__bytes__": "not base64!"}),
        "\xff",
    ]
    text = line("put", "good", 1) + "\n".join(item.rstrip("\n") for item in bad) + "\n"
    (src / "things.jsonl").write_bytes(text.encode("latin-1") + line("put", "last", 2).encode())
    with caplog.at_level(logging.WARNING, logger="lemon"):
        counts = await migrate_jsonl_to_sqlite(src, tmp_path / "new", clock=clock)
    assert counts[-1] == TableCount("things", 10, tuple(range(2, 10)), written=2)
    assert len(caplog.records) == 8
    assert await contents(tmp_path / "new", clock, "things") == {"things": {"good": 1, "last": 2}}


async def test_what_is_there_stays_unless_it_is_replaced(
    src: Path, tmp_path: Path, clock: FakeClock
) -> None:
    dst = tmp_path / "new.sqlite3"
    store = make_store("sqlite", dst, clock)
    await store.open()
    await store.put("chat", "s1", "newer")
    await store.put("chat", "s9", "other")
    await store.close()
    counts = await migrate_jsonl_to_sqlite(src, dst, clock=clock)
    assert counts[0] == TableCount("chat", lines=5, kept=1)
    assert await contents(dst, clock, "chat") == {"chat": {"s1": "newer", "s9": "other"}}
    again = await migrate_jsonl_to_sqlite(src, dst, clock=clock)
    assert sum(count.written for count in again) == 0
    counts = await migrate_jsonl_to_sqlite(src, dst, replace=True, clock=clock)
    assert counts[0] == TableCount("chat", lines=5, written=1)
    rows = (await contents(dst, clock, "chat"))["chat"]
    assert isinstance(rows, Mapping)
    assert rows["s9"] == "other"
    assert rows["s1"] == {"last_engine": "lemon", "last_resume_token": "sess_1"}


async def test_a_dry_run_counts_and_touches_nothing(
    src: Path, tmp_path: Path, clock: FakeClock
) -> None:
    dst = tmp_path / "new"
    dry = await migrate_jsonl_to_sqlite(src, dst, include_runs=True, dry_run=True, clock=clock)
    assert not dst.exists()
    real = await migrate_jsonl_to_sqlite(src, dst, include_runs=True, clock=clock)
    assert dry == real
    again = await migrate_jsonl_to_sqlite(src, dst, include_runs=True, dry_run=True, clock=clock)
    assert [count.written for count in again] == [0, 0, 0, 0]
    assert [count.kept for count in again] == [1, 0, 1, 3]


async def test_finished_runs_go_into_the_history(
    src: Path, tmp_path: Path, clock: FakeClock
) -> None:
    dst = tmp_path / "new"
    counts = await migrate_jsonl_to_sqlite(src, dst, include_runs=True, clock=clock)
    assert counts[2] == TableCount("runs", lines=2, written=1, left_out=1)
    store = make_store("sqlite", dst, clock)
    await store.open()
    (record,) = await RunStore(store, clock).history("s1")
    assert (record.run_id, record.started_at_ms, record.finished_at_ms) == ("run_1", 100, 105)
    assert record.summary is not None
    assert record.summary["completed"] == {"ok": True, "answer": "hi"}
    await store.close()


async def test_many_rows_are_all_written(tmp_path: Path, clock: FakeClock) -> None:
    src = tmp_path / "old"
    src.mkdir()
    (src / "things.jsonl").write_text("".join(line("put", n, n) for n in range(1_200)))
    counts = await migrate_jsonl_to_sqlite(src, tmp_path / "new", clock=clock)
    assert counts == [TableCount("things", lines=1_200, written=1_200)]
    rows = (await contents(tmp_path / "new", clock, "things"))["things"]
    assert rows == {number: number for number in range(1_200)}


@pytest.mark.parametrize("name", ["absent", "empty"])
async def test_a_folder_without_tables_is_told_by_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreUnavailable, match=name):
        await migrate_jsonl_to_sqlite(tmp_path / name, tmp_path / "new")
    assert not (tmp_path / "new").exists()
