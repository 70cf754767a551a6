"""`patch` (specification coding_agent 7 and 11.13)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools import patch as patch_module
from coding_agent.tools.file_access import delete_file
from coding_agent.tools.patch import PATCH, Step, apply_steps
from coding_agent.tools.patch_text import apply_hunks, parse_patch
from lemon_agent import ToolError
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio


def patch_of(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_bytes(b"def f():\r\n    return 1\r\n\r\ndef g():\r\n    return 1\r\n")
    (folder / "old.txt").write_text("old\n")
    (folder / "gone.txt").write_text("gone\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


async def test_files_are_added_changed_moved_and_deleted(work: Path) -> None:
    text = patch_of(
        "*** Add File: new/b.txt",
        "+one",
        "+two",
        "*** Update File: a.py",
        "@@ def g():",
        "-    return 1",
        "+    return 2",
        "*** Update File: old.txt",
        "*** Move to: moved/new.txt",
        "@@",
        "-old",
        "+new",
        "*** Delete File: gone.txt",
    )
    env = tool_env(work)
    result = await call(PATCH, env, patch_text=text)
    assert result.text == "Patch applied successfully. 4 files changed, 4 additions, 2 removals"
    assert contents(work) == {
        "a.py": b"def f():\r\n    return 1\r\n\r\ndef g():\r\n    return 2\r\n",
        "new/b.txt": b"one\ntwo\n",
        "moved/new.txt": b"new\n",
    }
    kept = details(result)["checkpoint_id"]
    await env.shared.checkpoints.restore_filesystem(kept, workspace=env.guard.workspace)
    assert set(contents(work)) == {"a.py", "old.txt", "gone.txt"}
    assert b"return 2" not in (work / "a.py").read_bytes()


@pytest.mark.parametrize(
    ("before", "hunk", "after"),
    [
        ("a\nb\na\n", ["-a", "+x"], "x\nb\na\n"),
        ("a\nb\na\n", [" b", "-a", "+x"], "a\nb\nx\n"),
        ("a\nb\na\n", ["-a", "+x", "*** End of File"], "a\nb\nx\n"),
        ("a\n", ["+x"], "a\nx\n"),
        ("a", ["+x"], "a\nx"),
        ("", ["+x"], "x\n"),
        ("a\r\nb\n", [" a", "+x"], "a\r\nx\nb\n"),
        ("a\n\nb\n", [" a", "", "-b"], "a\n\n"),
        ("a\nb\n", ["@@ a", "+x"], "a\nx\nb\n"),
        ("a\nb\nc\nb\n", ["@@ c", "-b"], "a\nb\nc\n"),
        ("a\nb\na\nb\n", ["-b", "+1", "@@", "-b", "+2"], "a\n1\na\n2\n"),
        ("a\n", ["@@ -1,1 +1,1 @@", "-a", "+x"], "x\n"),
    ],
)
def test_hunks_go_where_their_lines_are(before: str, hunk: list[str], after: str) -> None:
    (change,) = parse_patch(patch_of("*** Update File: f", *hunk))
    assert apply_hunks(before, change) == after


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["*** Update File: f", " a", "what"], "line 4 of the patch begins with none"),
        (["nothing"], "line 2 of the patch cannot be read"),
        (["*** Move to: x"], "stands directly below an update"),
        (["*** Update File: f"], "changes nothing in f"),
        ([], "names no file"),
    ],
)
def test_what_is_no_patch_is_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        parse_patch(patch_of(*lines))
    with pytest.raises(ToolError, match="a patch begins with"):
        parse_patch("*** Update File: f\n-a")


@pytest.mark.behaviour("coding_agent.13")
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["*** Add File: a\0b"], "cannot be used as a path"),
        (["*** Add File: " + "x/" * 2_100], "cannot be used as a path"),
        (["*** Add File: "], "cannot be used as a path"),
        (["*** Add File: a//b"], "cannot be used as a path"),
        (["*** Add File: ../b"], "leaves the working directory"),
        (["*** Add File: sub/../../b"], "leaves the working directory"),
        (["*** Add File: /etc/lemon"], "outside the workspace"),
        (["*** Delete File: link"], "is a link, or lies behind one"),
        (["*** Add File: folderlink/x"], "is a link, or lies behind one"),
        (["*** Delete File: pipe"], "pipe is not a regular file"),
        (["*** Delete File: folder"], "folder is a directory"),
        (["*** Delete File: big"], "10485760 is the most"),
        (["*** Add File: a.py", "+x"], "a.py is there already"),
        (["*** Update File: none", "-x"], "none: no such file"),
        (["*** Delete File: none"], "none: no such file"),
        (["*** Update File: a.py", "-x"], "a.py: hunk 1 does not fit"),
        (["*** Update File: a.py", "@@ class X", "+x"], "hunk 1 does not fit: below 'class X'"),
        (["*** Update File: old.txt", "*** Move to: a.py"], "a.py is there already"),
        (["*** Update File: old.txt", "*** Move to: ../b"], "leaves the working directory"),
        (["*** Update File: old.txt", "*** Move to: folderlink/b"], "is a link"),
        (["*** Delete File: old.txt", "*** Delete File: old.txt"], "names a file twice"),
        (["*** Update File: blob", "-x"], "blob is not UTF-8"),
    ],
)
async def test_one_bad_operation_leaves_all_files_unchanged(
    work: Path, lines: list[str], problem: str
) -> None:
    (work / "link").symlink_to("old.txt")
    (work / "folder").mkdir()
    (work / "folderlink").symlink_to("folder")
    (work / "blob").write_bytes(b"\xff\xfe\0")
    os.mkfifo(work / "pipe")
    with open(work / "big", "wb") as file:
        file.truncate(10 * 1_024 * 1_024 + 1)
    env, before = tool_env(work), contents(work)
    with pytest.raises(ToolError, match=problem):
        await call(PATCH, env, patch_text=patch_of("*** Delete File: gone.txt", *lines))
    assert contents(work) == before
    assert await env.shared.checkpoints.list() == ()


@pytest.mark.behaviour("coding_agent.13")
async def test_a_step_that_fails_takes_back_those_before_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(work)
    real = delete_file

    def refuse(path: Path, shown: str) -> None:
        if path.name == "gone.txt":
            raise ToolError(f"{shown}: cannot be deleted")
        real(path, shown)

    monkeypatch.setattr(patch_module, "delete_file", refuse)
    text = patch_of(
        "*** Add File: b.txt",
        "+b",
        "*** Update File: old.txt",
        "*** Move to: new.txt",
        "*** Update File: a.py",
        "-def f():",
        "*** Delete File: gone.txt",
    )
    with pytest.raises(ToolError, match="cannot be deleted"):
        await call(PATCH, tool_env(work), patch_text=text)
    assert contents(work) == before


async def test_the_policy_holds(work: Path) -> None:
    text = patch_of("*** Add File: b", "+long line")
    small = ToolPolicy.parse({"max_file_size": 3})
    with pytest.raises(ToolError, match="the policy allows 3"):
        await call(PATCH, tool_env(work, policy=small), patch_text=text)
    with pytest.raises(ToolError, match="read-only"):
        await call(PATCH, tool_env(work, read_only=True), patch_text=text)


def test_a_file_that_cannot_be_taken_back_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step(tmp_path / name, name, None, name.encode()) for name in ("a", "b", "c")]

    def broken(path: Path, shown: str) -> None:
        raise OSError(5, "Input/output error", shown) if shown == "b" else ToolError("no")

    content = patch_module._content

    def look(path: Path, shown: str) -> bytes | None:
        if shown == "c" or (shown == "b" and path.exists()):
            broken(path, shown)
        return content(path, shown)

    monkeypatch.setattr(patch_module, "_content", look)
    with pytest.raises(ToolError, match="no"):
        apply_steps(steps)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
