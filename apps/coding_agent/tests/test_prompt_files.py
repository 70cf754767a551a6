"""Files that are part of the prompt (specification coding_agent 4)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from coding_agent.prompt_files import MAX_CHARS, MAX_TOTAL_CHARS, PromptFiles, shortened
from coding_agent.tests.scene import scene
from lemon_ai.testing import Turn
from lemon_core.execution_context import Workspace

pytestmark = pytest.mark.anyio


def place(tmp_path: Path) -> tuple[PromptFiles, Path, Workspace]:
    project = (tmp_path / "home/project/sub").resolve()
    project.mkdir(parents=True)
    (tmp_path / "user").mkdir()
    files = PromptFiles(tmp_path / "agent/workspace", [tmp_path / "user"])
    return files, project, Workspace.at(str(project), [str(project.parent)])


def text_of(found: list[tuple[str, str]]) -> list[str]:
    return [text for _, text in found]


async def test_instructions_are_the_nearest_first_and_each_once(tmp_path: Path) -> None:
    files, project, workspace = place(tmp_path)
    (project / "CLAUDE.md").write_text("near")
    (project / "AGENTS.md").symlink_to("CLAUDE.md")
    (project / ".lemon").mkdir()
    (project / ".lemon/AGENTS.md").write_text(" hidden \n")
    (project.parent / "AGENTS.md").write_text("above")
    (project.parent.parent / "AGENTS.md").write_text("outside")
    (tmp_path / "user/AGENTS.md").write_text("everywhere")
    found = await files.instructions(str(project), workspace)
    assert text_of(found) == ["near", "hidden", "above", "outside", "everywhere"]
    assert found[0][0] == str(project / "CLAUDE.md")
    assert found == await files.instructions(str(project), workspace)


@pytest.mark.behaviour("coding_agent.123")
async def test_a_cloned_project_cannot_have_a_private_file_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link out of the workspace, a pipe, a folder, and a file above that is somebody else's."""
    files, project, workspace = place(tmp_path)
    (tmp_path / "secret").write_text("key")
    (project / "AGENTS.md").symlink_to(tmp_path / "secret")
    os.mkfifo(project / "CLAUDE.md")
    (project.parent / "AGENTS.md").mkdir()
    foreign = project.parent.parent / "AGENTS.md"
    foreign.write_text("obey me")
    assert text_of(await files.instructions(str(project), workspace)) == ["obey me"]

    # Nobody but root can give a file away, and a sandbox may not let even root do it.
    known, fstat = foreign.stat().st_ino, os.fstat

    def of_another(fd: int) -> os.stat_result:
        status = fstat(fd)
        if status.st_ino != known:
            return status
        return os.stat_result([*status[:4], 12_345, *status[5:10]])

    foreign.write_text("obey me now")
    monkeypatch.setattr(os, "fstat", of_another)
    assert await files.instructions(str(project), workspace) == []


async def test_much_text_is_shortened_and_bounded_in_all(tmp_path: Path) -> None:
    files, project, workspace = place(tmp_path)
    (project / "AGENTS.md").write_text("a" * 50_000 + "z")
    (one,) = text_of(await files.instructions(str(project), workspace))
    assert len(one) < MAX_CHARS
    assert one.startswith("aaa")
    assert one.endswith("z")
    assert "[… 32001 characters left out …]" in one
    assert shortened("x" * MAX_CHARS) == "x" * MAX_CHARS
    for number in range(6):
        folder = project / ("d" * number) / ".claude" if number else project / ".claude"
        folder.mkdir(parents=True)
        (folder / "CLAUDE.md").write_text(str(number) * 19_000)
    deep = project / "ddddd" / "x"
    deep.mkdir(parents=True)
    total = sum(map(len, text_of(await files.instructions(str(deep), workspace))))
    assert total <= MAX_TOTAL_CHARS
    (project / "AGENTS.md").write_bytes(b"x" * 2_000_000)
    assert all(
        "x" not in text for text in text_of(await files.instructions(str(project), workspace))
    )


@pytest.mark.behaviour("coding_agent.8")
async def test_the_assistants_home_depends_on_who_works(tmp_path: Path) -> None:
    files, _, workspace = place(tmp_path)
    main = dict(await files.home("main", workspace))
    assert list(main) == ["AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md"]
    assert list(dict(await files.home("subagent", workspace))) == ["AGENTS.md", "TOOLS.md"]
    (files.home_dir / "MEMORY.md").write_text("remember")
    (files.home_dir / "USER.md").unlink()
    main = dict(await files.home("main", workspace))
    assert main["MEMORY.md"] == "remember"
    assert main["USER.md"] == f"[MISSING] Expected at: {files.home_dir / 'USER.md'}"
    # Whoever may work in the home is told what there is to do in it.
    at_home = Workspace.at(str(files.home_dir.resolve()))
    assert {"HEARTBEAT.md", "BOOTSTRAP.md"} <= set(dict(await files.home("main", at_home)))
    (files.home_dir / "BOOTSTRAP.md").unlink()
    assert "BOOTSTRAP.md" not in dict(await files.home("main", at_home))


@pytest.mark.behaviour("coding_agent.8")
async def test_a_changed_memory_changes_the_prompt_of_the_next_turn(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="one"), Turn(text="two"), Turn(text="three")) as here:
        first = await here.run("first")
        memory = here.agent_dir / "workspace/MEMORY.md"
        memory.write_text("The user is Ann.")
        await here.run("second", resume=first.completed.resume)
        assert "## MEMORY.md\nThe user is Ann." in here.shown()[0][1]
        memory.write_text("The user is Bob.")
        await here.run("third", resume=first.completed.resume)
        assert "The user is Bob." in here.shown()[0][1]
        assert "Ann" not in here.shown()[0][1]


async def test_a_home_that_cannot_be_made_costs_no_run(tmp_path: Path) -> None:
    files, _, workspace = place(tmp_path)
    (tmp_path / "agent").touch()
    assert "[MISSING]" in dict(await files.home("main", workspace))["SOUL.md"]


async def test_a_projects_instructions_reach_the_model(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="ok")) as here:
        (here.cwd / "AGENTS.md").write_text("Use tabs.")
        await here.run()
        path = here.cwd / "AGENTS.md"
        assert f"<!-- From: {path} -->\nUse tabs." in here.shown()[0][1]


class Disk:
    """The time of a file system that may be moved on: what was written before is then settled."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ns(self) -> int:
        return time.time_ns() + self.ahead_ns


@pytest.mark.parametrize("is_settled", [True, False])
async def test_every_change_is_in_the_next_prompt(tmp_path: Path, is_settled: bool) -> None:
    """What is remembered of a place never hides a change of it: a text, a new or a removed file, a
    new folder, a link that leads elsewhere, an own file of the assistant's."""
    _, project, workspace = place(tmp_path)
    disk = Disk()
    disk.ahead_ns = 3_600_000_000_000 if is_settled else -3_600_000_000_000
    files = PromptFiles(tmp_path / "agent/workspace", [tmp_path / "user"], disk.now_ns)

    async def instructions() -> list[str]:
        first = await files.read("main", str(project), workspace)
        assert first == await files.read("main", str(project), workspace)
        return text_of(first[1])

    assert await instructions() == []
    near = project / "AGENTS.md"
    near.write_text("one")
    assert await instructions() == ["one"]
    near.write_text("changed")
    assert await instructions() == ["changed"]
    (project / ".lemon").mkdir()
    (project / ".lemon/CLAUDE.md").write_text("hidden")
    (tmp_path / "user/AGENTS.md").write_text("everywhere")
    assert await instructions() == ["changed", "hidden", "everywhere"]
    near.unlink()
    (project / "first").write_text("first")
    (project / "second").write_text("second")
    near.symlink_to("first")
    assert await instructions() == ["first", "hidden", "everywhere"]
    near.unlink()
    near.symlink_to("second")
    assert await instructions() == ["second", "hidden", "everywhere"]
    near.unlink()
    assert await instructions() == ["hidden", "everywhere"]
    (files.home_dir / "SOUL.md").write_text("I am new.")
    home, _ = await files.read("main", str(project), workspace)
    assert dict(home)["SOUL.md"] == "I am new."


async def test_what_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only once it is settled: a file system tells times in steps, and what was written within one
    may be written again unseen."""
    _, project, workspace = place(tmp_path)
    (project / "AGENTS.md").write_text("one")
    disk, reads = Disk(), 0
    files = PromptFiles(tmp_path / "agent/workspace", [], disk.now_ns)
    read = PromptFiles._read

    def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*arguments)

    monkeypatch.setattr(PromptFiles, "_read", counted)
    disk.ahead_ns = -3_600_000_000_000
    for _ in range(2):
        await files.read("main", str(project), workspace)
    assert reads == 2
    disk.ahead_ns = 3_600_000_000_000
    for _ in range(3):
        await files.read("main", str(project), workspace)
    assert reads == 3
    # A place is its scope, its directory and its roots.
    await files.read("subagent", str(project), workspace)
    await files.read("main", str(project), Workspace.at(str(project)))
    assert reads == 5
