"""`ls` (specification coding_agent 7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools import listing
from coding_agent.tools.listing import LS
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "x.py").write_text("x")
    (tmp_path / "b.txt").write_text("12345")
    (tmp_path / "a.txt").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


async def test_directories_come_first_and_links_are_shown(tree: Path) -> None:
    result = await call(LS, tool_env(tree))
    assert result.text.splitlines() == [
        "Directory: .",
        "d src/",
        "- a.txt",
        "- b.txt",
        "l loop",
        "? pipe",
        "5 entries",
    ]
    assert details(result) == {"path": ".", "entries": 5}
    assert "- .hidden" in (await call(LS, tool_env(tree), all=True)).text


async def test_recursion_has_a_depth_and_follows_no_link(tree: Path) -> None:
    result = await call(LS, tool_env(tree), recursive=True, max_depth=2)
    assert result.text.splitlines()[1:4] == ["d src/", "d src/deep/", "- a.txt"]
    deep = await call(LS, tool_env(tree), path="src", recursive=True)
    assert deep.text.splitlines() == [
        "Directory: src",
        "d deep/",
        "d deep/deeper/",
        "- deep/x.py",
        "3 entries",
    ]


async def test_long_lines_show_mode_size_and_time(tree: Path) -> None:
    (tree / "b.txt").chmod(0o640)
    os.utime(tree / "b.txt", (0, 0))
    text = (await call(LS, tool_env(tree), long=True)).text
    assert "- rw-r----- 5 1970-01-01 00:00 b.txt" in text.splitlines()


async def test_a_limit_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await call(LS, tool_env(tree), max_entries=2)
    assert result.text.splitlines()[-2:] == ["- a.txt", "[Showing 2 of 5 entries. Limit: 2]"]
    monkeypatch.setattr(listing, "MAX_COUNTED", 1)
    result = await call(LS, tool_env(tree), max_entries=2)
    assert result.text.endswith("[Showing 2 of 3 or more entries. Limit: 2]")


async def test_names_that_are_not_utf8_are_shown(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).touch()
    assert "- caf\ufffd" in (await call(LS, tool_env(tmp_path))).text


async def test_ls_names_what_is_wrong(tree: Path) -> None:
    for path, problem in {
        "none": "none: no such folder",
        "a.txt": "a.txt is a file: use read",
        "pipe": "pipe is a file",
        "..": "outside the workspace",
    }.items():
        with pytest.raises(ToolError, match=problem):
            await call(LS, tool_env(tree), path=path)
