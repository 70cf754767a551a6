"""Checkpoints before edits, and the tool for them (specification coding_agent 7 and 11.16)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coding_agent.tests.harness import call, details, kept_in, tool_env
from coding_agent.tools.anchors import tag_of
from coding_agent.tools.checkpoint import CHECKPOINT
from coding_agent.tools.edit import EDIT
from coding_agent.tools.files import WRITE
from coding_agent.tools.hashline import HASHLINE_EDIT
from coding_agent.tools.patch import PATCH
from coding_agent.tools.toolset import ToolDef, ToolEnv
from lemon_agent import ToolError
from lemon_core.checkpoint_files import FILE_MAX_BYTES

pytestmark = pytest.mark.anyio

CHANGES: list[tuple[ToolDef, dict[str, Any]]] = [
    (WRITE, {"path": "a", "content": "new"}),
    (EDIT, {"path": "a", "old_text": "old", "new_text": "new"}),
    (
        HASHLINE_EDIT,
        {"path": "a", "edits": [{"op": "replace", "pos": tag_of(1, "old"), "lines": ["new"]}]},
    ),
    (
        PATCH,
        {"patch_text": "*** Begin Patch\n*** Update File: a\n-old\n+new\n*** End Patch"},
    ),
]


@pytest.fixture
def env(tmp_path: Path) -> ToolEnv:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").write_text("old")
    return tool_env(tmp_path / "work")


def git_init(env: ToolEnv) -> None:
    command = ["git", "init", "-q", str(env.guard.cwd)]
    subprocess.run(command, check=True, env=dict(env.environ))


@pytest.mark.behaviour("coding_agent.16")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0].name)
async def test_every_change_can_be_undone(env: ToolEnv, change: tuple[ToolDef, Any]) -> None:
    tool, params = change
    kept = details(await call(tool, env, **params))
    assert kept["checkpoint_kind"] == "filesystem"
    assert (env.guard.cwd / "a").read_text() == "new"
    chosen = {"checkpoint_id": kept["checkpoint_id"]}
    listed = await call(CHECKPOINT, env, action="list")
    assert listed.text.startswith(f"{kept['checkpoint_id']}  2023-11-14 22:13:20  filesystem  a")
    diff = await call(CHECKPOINT, env, action="diff", **chosen)
    assert "-old" in diff.text
    assert "+new" in diff.text
    done = await call(CHECKPOINT, env, action="restore", paths=["a"], **chosen)
    assert (done.text, details(done)["restored_count"]) == ("Restored 1 files: a", 1)
    assert (env.guard.cwd / "a").read_text() == "old"
    assert (await call(CHECKPOINT, env, action="diff", **chosen)).text == "No changes since."
    await call(CHECKPOINT, env, action="delete", **chosen)
    assert (await call(CHECKPOINT, env, action="list")).text.startswith("No checkpoints")


async def test_a_new_file_is_undone_by_deleting_it(env: ToolEnv) -> None:
    kept = details(await call(WRITE, env, path="sub/new", content="x"))["checkpoint_id"]
    done = await call(CHECKPOINT, env, action="restore", checkpoint_id=kept)
    assert done.text == "Restored 1 files: sub/new (deleted)"
    assert not (env.guard.cwd / "sub" / "new").exists()


async def test_only_the_conversations_own_checkpoints_can_be_used(env: ToolEnv) -> None:
    kept = details(await call(WRITE, env, path="a", content="new"))["checkpoint_id"]
    other = replace(env, identity=replace(env.identity, session_id="sess_2"))
    assert (await call(CHECKPOINT, other, action="list")).text.startswith("No checkpoints")
    for action in ("diff", "restore", "delete"):
        with pytest.raises(ToolError, match="in this conversation"):
            await call(CHECKPOINT, other, action=action, checkpoint_id=kept)
    with pytest.raises(ToolError, match="only the checkpoints of this conversation"):
        await call(CHECKPOINT, other, action="list", session_id="sess_1")
    for params, problem in [
        ({"action": "diff"}, "diff needs checkpoint_id"),
        ({"action": "diff", "checkpoint_id": "x"}, "is no checkpoint id"),
        ({"action": "restore", "checkpoint_id": kept, "paths": ["b"]}, "b is not in"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(CHECKPOINT, env, **params)
    assert (env.guard.cwd / "a").read_text() == "new"


async def test_what_cannot_be_kept_is_not_changed(env: ToolEnv) -> None:
    kept_in(env.guard.cwd).touch()
    for tool, params in CHANGES:
        with pytest.raises(ToolError, match="nothing was changed: what is there cannot be kept"):
            await call(tool, env, **params)
    assert (env.guard.cwd / "a").read_text() == "old"


@pytest.mark.behaviour("coding_agent.106")
async def test_ignored_and_large_files_are_left_out_and_it_is_said(env: ToolEnv) -> None:
    cwd = env.guard.cwd
    git_init(env)
    (cwd / ".gitignore").write_text("build/\n")
    (cwd / "build").mkdir()
    (cwd / "build" / "out").write_text("made")
    with open(cwd / "large", "wb") as file:
        file.truncate(FILE_MAX_BYTES + 1)
    for path in ("build/out", "large"):
        told = details(await call(WRITE, env, path=path, content="x"))
        assert told["checkpoint_left_out"] == [path]
        assert "checkpoint_id" not in told
    for number in range(50):
        await call(WRITE, env, path="a", content=f"{number}")
    checkpoints = await env.shared.checkpoints.list("sess_1")
    assert len(checkpoints) == 50
    assert {header.paths for header in checkpoints} == {("a",)}
    size = sum(path.stat().st_size for path in (kept_in(cwd) / "checkpoints").iterdir())
    assert size < 50_000


async def test_a_repositorys_settings_start_no_program(env: ToolEnv) -> None:
    cwd = env.guard.cwd
    git_init(env)
    hook = cwd / "hook"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    with open(cwd / ".git" / "config", "a", encoding="utf-8") as file:
        file.write(f"[core]\n\tfsmonitor = {hook}\n")
    await call(WRITE, env, path="a", content="new")
    assert "ran" not in os.listdir(cwd)
