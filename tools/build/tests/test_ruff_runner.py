"""The ruff test fails on a finding and on a file that is not formatted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.build import ruff_runner


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code"),
    [("x = 1\n", 0), ("import os\n", 1), ("x=1\n", 1), ("def broken(:\n", 1)],
)
def test_lint_and_format_both_count(place: Path, text: str, code: int) -> None:
    (place / "a.py").write_text(text, "utf-8")
    assert ruff_runner.main(["a.py"]) == code


def test_other_files_are_left_out(place: Path) -> None:
    (place / "BUILD.bazel").write_text("x=1", "utf-8")
    assert ruff_runner.main(["BUILD.bazel"]) == 0
