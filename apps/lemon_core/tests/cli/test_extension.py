"""`lemon extension validate` (specification lemon_core 17)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lemon_core.cli.extension import app
from lemon_core.tests.cli.commands import run_command

GOOD = {"name": "notes", "version": "1.0.0", "schema_version": 1}


def test_a_valid_manifest_is_told_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extension.json").write_text(json.dumps(GOOD))
    assert run_command(app, "validate", ".", home=tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'extension.json'}: notes 1.0.0 is valid\n"


def test_every_problem_is_a_line_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extension.json").write_text('{"name": "notes", "host": {"type": "x"}}')
    assert run_command(app, "validate", "extension.json", home=tmp_path) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert "is not valid" in lines[0]
    assert [line.split(": ")[1].strip() for line in lines[1:]] == [
        "version",
        "schema_version",
        "host.type",
    ]


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "extension.json"
    path.write_text(json.dumps({**GOOD, "name": "No"}))
    assert run_command(app, "validate", str(tmp_path), "--json", home=tmp_path) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "path": str(path),
        "ok": False,
        "name": None,
        "version": None,
        "problems": [{"path": "name", "message": "is not of the form it must have"}],
    }
    assert err == ""


def test_a_folder_without_a_manifest_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (".", "missing"):
        assert run_command(app, "validate", path, home=tmp_path) == 1
        assert "there is no manifest (lemon_extension.json" in capsys.readouterr().err
