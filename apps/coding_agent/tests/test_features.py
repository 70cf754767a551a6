"""A project's own list of features (specification coding_agent 9: `feature_progress`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coding_agent.features import FILE, feature_progress


def write(folder: Path, document: object) -> None:
    (folder / FILE).write_text(json.dumps(document))


def test_features_are_counted_and_what_can_be_begun_is_named(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "status": "completed"},
        {"id": "b", "status": "pending", "dependencies": ["a"]},
        {"id": "c", "status": "pending", "dependencies": ["b"]},
        {"id": "d", "status": "in_progress"},
        {"id": "e", "status": "failed"},
        {"id": "f", "status": "odd"},
        "no feature",
    ]
    write(tmp_path, {"features": rows})
    assert feature_progress(str(tmp_path)) == {
        "total": 6,
        "pending": 3,
        "in_progress": 1,
        "completed": 1,
        "failed": 1,
        "percentage": 17,
        "actionable": ["b", "f"],
    }
    write(tmp_path, {"features": []})
    assert feature_progress(str(tmp_path))["percentage"] == 0


def test_without_a_file_there_is_no_progress(tmp_path: Path) -> None:
    assert feature_progress(str(tmp_path)) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"features": 3}'])
def test_a_file_that_cannot_be_understood_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert list(feature_progress(str(tmp_path))) == ["error"]


def test_neither_a_pipe_nor_a_link_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert "no file" in str(feature_progress(str(tmp_path))["error"])
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    assert "cannot be read" in str(feature_progress(str(tmp_path))["error"])
