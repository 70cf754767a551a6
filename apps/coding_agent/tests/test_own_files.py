"""Names that mean the assistant's own files (specification coding_agent 7, 11.12)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from coding_agent.own_files import OwnFiles, is_recent_note
from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tests.scene import scene, tool_turn
from coding_agent.tools.edit import EDIT
from coding_agent.tools.files import READ, WRITE
from coding_agent.tools.search import GREP
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError
from lemon_ai.testing import Turn
from lemon_core.execution_context import Provenance

pytestmark = pytest.mark.anyio


@pytest.fixture
def env(tmp_path: Path) -> ToolEnv:
    (tmp_path / "work").mkdir()
    home = tmp_path / "home"
    (home / "memory").mkdir(parents=True)
    (home / "MEMORY.md").write_text("mine\n")
    env = tool_env(tmp_path / "work")
    return replace(env, guard=replace(env.guard, own=OwnFiles(home.resolve())))


def day(env: ToolEnv, days_ago: int) -> str:
    today = datetime.fromtimestamp(env.shared.now_ms() / 1000).astimezone()
    return f"memory/{(today - timedelta(days=days_ago)).date().isoformat()}.md"


@pytest.mark.behaviour("coding_agent.12")
@pytest.mark.parametrize("days_ago", [0, 1])
async def test_a_daily_note_that_was_not_begun_is_empty(env: ToolEnv, days_ago: int) -> None:
    name = day(env, days_ago)
    result = await call(READ, env, path=name)
    assert (result.text, result.is_error) == ("", False)
    assert details(result)["missing_optional"] is True
    assert env.guard.own is not None
    (env.guard.own.home / name).write_text("note\n")
    assert (await call(READ, env, path=name)).text == "1: note"


@pytest.mark.behaviour("coding_agent.12")
async def test_other_notes_have_to_be_there(env: ToolEnv) -> None:
    for name in (day(env, 2), day(env, -1), "memory/other.md", f"./{day(env, 0)}"):
        with pytest.raises(ToolError, match="no such file"):
            await call(READ, env, path=name)


async def test_own_names_mean_the_home_and_a_dot_means_the_project(env: ToolEnv) -> None:
    (env.guard.cwd / "MEMORY.md").write_text("theirs\n")
    assert (await call(READ, env, path="MEMORY.md")).text == "1: mine"
    assert (await call(READ, env, path="./MEMORY.md")).text == "1: theirs"
    assert env.guard.own is not None
    (env.guard.own.home / "memory/a.md").write_text("needle\n")
    found = await call(GREP, env, pattern="needle", path="memory")
    assert found.text.splitlines()[1].endswith("memory/a.md:1: needle")


async def test_what_only_the_project_has_is_meant_without_a_dot(env: ToolEnv) -> None:
    (env.guard.cwd / "memory").mkdir()
    (env.guard.cwd / "memory/alloc.c").write_text("int x;\n")
    (env.guard.cwd / "USER.md").write_text("theirs\n")
    assert (await call(READ, env, path="memory/alloc.c")).text == "1: int x;"
    await call(WRITE, env, path="memory/new.c", content="")
    assert (env.guard.cwd / "memory/new.c").exists()
    assert (await call(READ, env, path="USER.md")).text == "1: theirs"


async def test_soul_is_read_from_the_home_when_the_project_has_none(env: ToolEnv) -> None:
    assert env.guard.own is not None
    (env.guard.own.home / "SOUL.md").write_text("me\n")
    assert (await call(READ, env, path="SOUL.md")).text == "1: me"
    (env.guard.cwd / "SOUL.md").write_text("theirs\n")
    assert (await call(READ, env, path="SOUL.md")).text == "1: theirs"


async def test_own_files_are_changed_only_by_runs_that_may_work_there(env: ToolEnv) -> None:
    advice = r"lies outside the workspace .*assistant's own; ./MEMORY.md is the project's"
    with pytest.raises(ToolError, match=advice):
        await call(WRITE, env, path="MEMORY.md", content="x")
    with pytest.raises(ToolError, match="outside the workspace"):
        await call(EDIT, env, path="MEMORY.md", old_text="mine", new_text="x")
    assert env.guard.own is not None
    home = env.guard.own.home
    wide = tool_env(env.guard.cwd, roots=[env.guard.cwd, home])
    wide = replace(wide, guard=replace(wide.guard, own=env.guard.own))
    await call(EDIT, wide, path="MEMORY.md", old_text="mine", new_text="more")
    assert (home / "MEMORY.md").read_text() == "more\n"


@pytest.mark.parametrize("path", ["memory/../secret", "memory/../../x", "AGENTS.md", "memory/link"])
async def test_nothing_else_of_the_home_is_read(env: ToolEnv, path: str) -> None:
    assert env.guard.own is not None
    (env.guard.own.home / "secret").write_text("s")
    (env.guard.own.home / "AGENTS.md").write_text("s")
    (env.guard.own.home / "memory/link").symlink_to("../secret")
    with pytest.raises(ToolError, match=r"outside the workspace|no such file"):
        await call(READ, env, path=path)


def test_days_are_those_of_the_users_clock() -> None:
    noon = datetime(2026, 3, 1, 12).astimezone()
    now_ms = int(noon.timestamp() * 1000)
    assert is_recent_note("memory/2026-03-01.md", now_ms)
    assert is_recent_note("memory/2026-02-28.md", now_ms)
    assert not is_recent_note("memory/2026-02-27.md", now_ms)


async def test_a_run_reads_the_memory_of_its_assistant(tmp_path: Path) -> None:
    async with scene(tmp_path, tool_turn("read", path="MEMORY.md"), Turn(text="ok")) as here:
        home = here.agent_dir / "workspace"
        home.mkdir(parents=True)
        (home / "MEMORY.md").write_text("you like tea\n")
        await here.run()
        assert here.shown()[-1] == ("tool", "1: you like tea")


async def test_what_strangers_write_to_a_webhook_reads_no_memory(tmp_path: Path) -> None:
    """Its directory is all that an integration was given, and the answer goes to its sender."""
    async with scene(tmp_path, tool_turn("read", path="MEMORY.md"), Turn(text="ok")) as here:
        home = here.agent_dir / "workspace"
        home.mkdir(parents=True)
        (home / "MEMORY.md").write_text("you like tea\n")
        request = here.request("hello")
        provenance = Provenance(origin="webhook", untrusted_input=True)
        context = request.execution_context.model_copy(update={"provenance": provenance})
        live = await here.prepare(replace(request, execution_context=context))
        with anyio.fail_after(10):
            await live.play()
        assert here.shown()[-1] == ("tool", "MEMORY.md: no such file")
        prompt = str(here.server.requests[-1].body)
        assert "## TOOLS.md" in prompt
        assert "you like tea" not in prompt
        assert "## USER.md" not in prompt
