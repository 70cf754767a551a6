"""mypy in the build: each library is analysed once and reported on once."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.build import mypy_runner

BASE = "def half(number: int) -> int:\n    return number / 2\n"
USER = "from base import half\n\nhalf('four')\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An action's working directory with the two libraries `base` and `user`."""
    (tmp_path / "base.py").write_text(BASE, "utf-8")
    (tmp_path / "user.py").write_text(USER, "utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n", "utf-8")
    for number, folder in enumerate(_package_folders()):
        (tmp_path / f"packages{number}").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    return tmp_path


def _package_folders() -> list[Path]:
    """Where this Python found its packages: one folder in a venv, one per package in Bazel."""
    return [path for path in map(Path, sys.path) if path.name in ("site-packages", "site")]


def _run(place: Path, name: str, caches: Sequence[str] = (), options: str = "mypy.ini") -> int:
    params = {
        "cache": f"{name}.db",
        "caches": list(caches),
        "config": options,
        "packages": [f"packages{number}" for number in range(len(_package_folders()))],
        "report": f"{name}.txt",
        "search_path": ["."],
        "sources": [f"{name}.py"],
    }
    (place / f"{name}.json").write_text(json.dumps(params), "utf-8")
    return mypy_runner.main([f"{name}.json"])


def _rows(path: Path) -> dict[str, bytes]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT path, data FROM files2"))


def test_a_library_is_analysed_once_and_reported_on_once(place: Path) -> None:
    assert _run(place, "base") == 0
    assert (place / "base.txt").read_text("utf-8").startswith("base.py:2: error: ")

    assert _run(place, "user", ["base.db"]) == 0
    report = (place / "user.txt").read_text("utf-8").splitlines()
    assert [line.partition(": error: ")[0] for line in report] == ["user.py:3"]

    base, user = _rows(place / "base.db"), _rows(place / "user.db")
    assert {"base.meta.ff", "builtins.meta.ff"} <= base.keys()
    assert "user.meta.ff" in user
    assert not {"base.meta.ff", "builtins.meta.ff"} & user.keys()


def test_the_cache_does_not_depend_on_where_or_when_it_was_written(place: Path) -> None:
    assert _run(place, "base") == 0
    first = (place / "base.db").read_bytes()
    (place / "base.db").unlink()
    assert _run(place, "base") == 0
    assert (place / "base.db").read_bytes() == first


def test_a_file_that_does_not_parse_is_a_report(place: Path) -> None:
    (place / "base.py").write_text("def half(:\n", "utf-8")
    assert _run(place, "base") == 0
    assert (place / "base.txt").read_text("utf-8").startswith("base.py:1: error: ")


def test_a_call_that_mypy_refuses_fails_the_action(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "bad.ini").write_text("[mypy]\nplugins = nowhere.at_all\n", "utf-8")
    assert _run(place, "base", options="bad.ini") == 2
    assert "nowhere.at_all" in capsys.readouterr().err
