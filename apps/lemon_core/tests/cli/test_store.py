"""`lemon store migrate` (specification lemon_core 8.2, 17)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import typer

from lemon_core.cli.store import app
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.state_lock import RuntimeBusy, hold_state_lock
from lemon_core.store import StoreSettings, open_store
from lemon_core.testing import temp_home
from lemon_core.tests.cli.commands import run_command


@pytest.fixture
def home() -> Iterator[Path]:
    with temp_home() as paths:
        yield paths.home


@pytest.fixture
def old(home: Path) -> Path:
    """An older store with a good line, a bad one, and a table that is not imported."""
    folder = home / "old"
    folder.mkdir()
    (folder / "things.jsonl").write_text('{"op": "put", "key": "k", "value": 1, "ts": 1}\n{"op"\n')
    (folder / "runs.jsonl").write_text("")
    return folder


def stored(path: Path) -> list[tuple[object, object]]:
    async def read() -> list[tuple[object, object]]:
        async with open_store(StoreSettings("sqlite", path), SystemClock()) as store:
            return [*await store.list("things")]

    return anyio.run(read)


def test_the_configured_store_is_filled_and_told(
    home: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, "migrate", "old", home=home) == 0
    out, err = capsys.readouterr()
    file = home / ".lemon" / "store" / "store.sqlite3"
    assert out.splitlines() == [
        "table   lines  bad  written  kept  left out",
        "things      2    1        1     0         0",
    ]
    assert err.splitlines() == [
        "lemon: runs: not imported: runs are imported on request only",
        "lemon: things: unreadable lines passed over: 2",
        f"lemon: {file}: imported",
    ]
    assert stored(file) == [("k", 1)]


def test_a_dry_run_leaves_the_home_as_it_was(
    home: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, "migrate", str(old), "--dry-run", "--json", home=home) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["dry_run"], err) == (True, "")
    runs, things = document["tables"]
    assert runs["skipped"] == "runs are imported on request only"
    assert things == {
        "table": "things",
        "lines": 2,
        "bad_lines": [2],
        "written": 1,
        "kept": 0,
        "left_out": 0,
        "skipped": None,
    }
    assert os.listdir(home) == ["old"]


def test_rows_are_kept_or_replaced_in_a_store_that_is_named(
    home: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "runs.jsonl").unlink()
    target = home / "new.db"
    assert run_command(app, "migrate", "old", "--to", "new.db", home=home) == 0
    (old / "things.jsonl").write_text('{"op": "put", "key": "k", "value": 2}')
    assert run_command(app, "migrate", "old", "--to", "new.db", home=home) == 0
    assert stored(target) == [("k", 1)]
    assert run_command(app, "migrate", "old", "--to", "new.db", "--replace", home=home) == 0
    assert stored(target) == [("k", 2)]
    assert "things      1    0        0     1         0" in capsys.readouterr().out


@pytest.mark.parametrize("lock", [".lemon/run/runtime.lock", "new.db.lock"])
def test_it_refuses_while_a_lemon_runs(home: Path, old: Path, lock: str) -> None:
    """The one of this home, and one of another home that has the named file open."""

    async def beside() -> None:
        async with hold_state_lock(home / lock, "server", SystemClock()):
            with pytest.raises(RuntimeBusy, match=f"server .process {os.getpid()}"):
                await anyio.to_thread.run_sync(
                    lambda: run_command(app, "migrate", "old", "--to", "new.db", home=home)
                )

    async def bounded() -> None:
        with anyio.fail_after(5):
            await beside()

    anyio.run(bounded)
    assert not (home / "new.db").exists()


def test_a_store_without_a_file_needs_a_destination(home: Path, old: Path) -> None:
    environ = {"HOME": str(home), "LEMON_STORE_BACKEND": "memory"}
    with pytest.raises(typer.BadParameter, match="give --to FILE"):
        run_command(app, "migrate", "old", home=home, environ=environ)
    assert not PathSettings(home).state_dir.exists()
