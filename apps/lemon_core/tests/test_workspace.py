"""Workspaces (specification lemon_core 6.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from lemon_core.workspace import Workspace


def test_without_roots_the_directory_is_the_only_one(tmp_path: Path) -> None:
    space = Workspace.at(str(tmp_path))
    assert space == Workspace(cwd=str(tmp_path), roots=(str(tmp_path),))


def test_links_are_resolved_when_a_workspace_is_made(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert Workspace.at(str(tmp_path / "link")).roots == (str(real),)


@pytest.mark.parametrize(
    ("cwd", "roots"),
    [
        ("work", ("/project",)),
        ("/project", ()),
        ("/project", ("work",)),
        ("/project", ("/other",)),
        ("/project", ("/workshop",)),
        ("/project/../etc", ("/project",)),
        ("/project", ("/project/.",)),
        ("//work", ("//work",)),
        ("/project/", ("/project",)),
        ("/work\0", ("/",)),
    ],
)
def test_paths_are_absolute_plain_and_inside(cwd: str, roots: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Workspace(cwd=cwd, roots=roots)


def test_what_lies_inside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "door").symlink_to(outside)
    space = Workspace.at(str(inside))
    assert space.contains("file")
    assert space.contains(str(inside))
    assert space.contains("missing/deeper")
    assert not space.contains("../out")
    assert not space.contains(str(tmp_path / "in2"))
    assert not space.contains("door/file")
    assert not space.contains("a\0b")
    assert Workspace.at("/").contains("/etc")
