"""Paths are resolved before they are trusted (specification coding_agent 6 and 7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coding_agent.tests.harness import tool_env
from coding_agent.workspace import PathGuard, make_private_folder, opened, printable
from lemon_agent import ToolError
from lemon_core.execution_context import Workspace


@pytest.fixture
def guard(tmp_path: Path) -> PathGuard:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    return tool_env(tmp_path / "work").guard


def test_relative_absolute_and_home_paths_are_resolved(guard: PathGuard) -> None:
    inside = guard.cwd / "a" / "b.txt"
    assert guard.resolve("a/b.txt") == inside
    assert guard.resolve(str(inside)) == inside
    assert guard.resolve("~/a/b.txt") == inside
    assert guard.resolve(".") == guard.resolve("~") == guard.cwd
    assert guard.shown(inside) == "a/b.txt"


@pytest.mark.behaviour("coding_agent.26")
@pytest.mark.parametrize(
    "path", ["../outside/x", "/etc/passwd", "a/../../outside", "link/x", "one"]
)
def test_a_path_that_leads_outside_is_refused(guard: PathGuard, path: str) -> None:
    (guard.cwd / "link").symlink_to(guard.cwd.parent / "outside")
    (guard.cwd / "one").symlink_to(guard.cwd.parent / "outside" / "new.txt")
    with pytest.raises(ToolError, match="outside the workspace"):
        guard.resolve(path)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (None, "path is required"),
        ("  ", "path is required"),
        ("a\0b", "null character"),
        ("x" * 300, "too long"),
        ("loop", "links"),
        ("file/below", "[Nn]ot a directory"),
    ],
)
def test_what_is_no_path_is_refused(guard: PathGuard, path: object, problem: str) -> None:
    (guard.cwd / "loop").symlink_to("loop")
    (guard.cwd / "file").touch()
    with pytest.raises(ToolError, match=problem):
        guard.resolve(path)


def test_a_link_that_stays_inside_leads_to_its_target(guard: PathGuard) -> None:
    (guard.cwd / "real.txt").touch()
    (guard.cwd / "link.txt").symlink_to("real.txt")
    assert guard.resolve("link.txt") == guard.cwd / "real.txt"


def test_a_root_that_is_a_link_itself_still_counts(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    workspace = Workspace(cwd=str(link), roots=(str(link),))
    guard = PathGuard(real.resolve(), tmp_path, workspace)
    assert guard.resolve("x") == real.resolve() / "x"


def test_a_read_only_workspace_is_read_only(tmp_path: Path) -> None:
    guard = tool_env(tmp_path, read_only=True).guard
    assert guard.resolve("x") == tmp_path.resolve() / "x"
    with pytest.raises(ToolError, match="read-only"):
        guard.resolve("x", writing=True)


@pytest.mark.behaviour("coding_agent.26")
def test_a_link_put_in_the_way_after_the_check_is_refused(guard: PathGuard) -> None:
    """Between check and use the folder becomes a link that leads outside."""
    (guard.cwd / "sub").mkdir()
    (guard.cwd.parent / "outside" / "x").write_text("secret")
    path = guard.resolve("sub/x")
    (guard.cwd / "sub").rmdir()
    (guard.cwd / "sub").symlink_to(guard.cwd.parent / "outside")
    with pytest.raises(ToolError, match="was moved"), opened(path, os.O_RDONLY):
        pass


def test_private_folders_are_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    make_private_folder(folder)
    make_private_folder(folder)
    modes = {path.stat().st_mode & 0o777 for path in (folder, folder.parent, tmp_path / "a")}
    assert modes == {0o700}


def test_a_name_that_is_not_utf8_can_be_shown() -> None:
    assert printable(os.fsdecode(b"caf\xe9.txt")) == "caf\ufffd.txt"
