"""Extensions in whole runs, and the one of the guide (specification coding_agent 9, 11.22)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import anyio
import pytest

from coding_agent.services import services
from coding_agent.tests.extension_files import write_extension
from coding_agent.tests.scene import Scene, scene, text_of, tool_turn
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
from lemon_agent.tool_registry import ToolOptions, ToolRegistry
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.registry import builtin_adapter
from lemon_ai.testing import Turn
from lemon_core.agent_runtime import AgentCallback, AgentRuntime
from lemon_core.config.model import Extensions as ExtensionKeys
from lemon_core.config.model import LemonConfig
from lemon_core.config.trust import TrustedProjects
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

GUIDE = "docs/extensions.md"


def configured(here: Scene, *paths: Path, auto_load: bool = False) -> None:
    """The runtime's configuration names these paths from now on."""
    config: LemonConfig = here.runtime.config
    runtime = config.runtime.model_copy(
        update={
            "extension_paths": tuple(map(str, paths)),
            "extensions": ExtensionKeys(auto_load_default_paths=auto_load),
        }
    )
    here.runtime.config = config.model_copy(update={"runtime": runtime})


def offered(here: Scene, request: int = -1) -> list[str]:
    """The tools that the model was shown."""
    return [tool["function"]["name"] for tool in here.server.requests[request].body["tools"]]


def last_result(here: Scene) -> str:
    """What the last tool call gave the model."""
    return text_of(here.server.requests[-1].body["messages"][-1]["content"])


async def ask(here: Scene, name: AgentCallback, *args: object) -> Any:
    runtime = AgentRuntime(here.runtime.capabilities, here.runtime.clock)
    with anyio.fail_after(5):
        return await runtime.call(name, *args, fallback="no answer")


def guide() -> str:
    root = next(folder for folder in Path(__file__).parents if (folder / GUIDE).is_file())
    return (root / GUIDE).read_text("utf-8")


async def test_the_extension_of_the_guide_works(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", guide(), re.DOTALL)
    folder = tmp_path / "lemon-extensions"
    folder.mkdir()
    (folder / "wordcount.py").write_text(source)
    turns = (
        tool_turn("word_count", path="README.md"),
        tool_turn("word_count", path="../outside"),
        tool_turn("extensions_status", action="status"),
        Turn(text="3 words"),
    )
    async with scene(tmp_path, *turns) as here:
        configured(here, folder)
        (here.cwd / "README.md").write_text("one two three\n")
        live = await here.run(policy=ToolPolicy.of_profile("safe_mode"))
        assert live.completed.ok
        said = [text for role, text in here.shown() if role == "tool"]
        assert said[0] == "3 words"
        assert "is outside of" in said[1]
        assert said[2] == "wordcount 1.0.0 (configured): word_count"
        (told,) = (await ask(here, "load_extensions", [str(folder)]))["extensions"]
        assert (told["name"], told["capabilities"]) == ("wordcount", ["counting"])
        assert told["hooks"] == ["on_tool_execution_end"]
        (extension,) = (
            await here.runtime.service(services).foreign_tools.extensions.of(str(here.cwd))
        ).extensions
        calls = cast(Any, extension.value).calls
        assert calls == ["word_count", "word_count", "extensions_status"]


HOOKING = """
def hooks(self):
    import pathlib
    log = pathlib.Path(__file__).with_suffix(".log")
    def note(name):
        def noted(*args):
            with log.open("a") as file:
                kinds = [getattr(each, "role", None) or type(each).__name__ for each in args]
                file.write(f"{name} {' '.join(kinds)}\\n")
        return noted
    async def late(*args):
        note("on_agent_end")(*args)
    names = ("on_agent_start", "on_turn_start", "on_turn_end", "on_message_start",
             "on_message_end", "on_tool_execution_start", "on_tool_execution_end")
    return {**{name: note(name) for name in names}, "on_agent_end": late}
"""
THROWING = """
def hooks(self):
    def throw(*args):
        raise OSError("hook")
    def leave(*args):
        raise SystemExit(1)
    return {"on_agent_start": throw, "on_tool_execution_end": leave, "on_message_end": throw}
"""


@pytest.mark.behaviour("coding_agent.22")
async def test_hooks_are_told_in_order_and_one_that_throws_is_isolated(tmp_path: Path) -> None:
    folder = tmp_path / "ext"
    write_extension(folder, "a_throws", THROWING)
    path = write_extension(folder, "b_notes", HOOKING)
    async with scene(tmp_path, tool_turn("ls"), Turn(text="done")) as here:
        configured(here, folder)
        live = await here.run()
        assert live.completed.ok
        assert live.completed.answer == "done"
    assert path.with_suffix(".log").read_text().splitlines() == [
        "on_agent_start ",
        "on_turn_start ",
        "on_message_start user",
        "on_message_end user",
        "on_message_start assistant",
        "on_message_end assistant",
        "on_tool_execution_start str str dict",
        "on_tool_execution_end str str AgentToolResult bool",
        "on_message_start tool_result",
        "on_message_end tool_result",
        "on_turn_end assistant tuple",
        "on_turn_start ",
        "on_message_start assistant",
        "on_message_end assistant",
        "on_turn_end assistant tuple",
        "on_agent_end tuple",
    ]


async def test_the_same_runs_without_extensions_are_sent_the_same_bytes(tmp_path: Path) -> None:
    """An extension without tools changes nothing of what a model reads."""
    async with scene(tmp_path, Turn(text="a"), Turn(text="b")) as here:
        await here.run()
        write_extension(tmp_path / "ext", "quiet")
        configured(here, tmp_path / "ext")
        await here.run()
        first, second = (dict(request.body) for request in here.server.requests)
        assert json.dumps(first) == json.dumps(second)


@asynccontextmanager
async def project_scene(folder: Path, *turns: Turn) -> AsyncIterator[Scene]:
    """A scene whose project has an extension with the tool `theirs`."""
    async with scene(folder, *turns) as here:
        body = "def tools(self, cwd):\n    return [ExtensionTool(made('theirs', 'hello'))]"
        write_extension(here.cwd / ".lemon" / "extensions", "project", body)
        configured(here, auto_load=True)
        yield here


@pytest.mark.behaviour("coding_agent.22")
async def test_a_projects_extension_needs_trust_and_loses_it_with_a_change(tmp_path: Path) -> None:
    """DESIGN ruling 40."""
    turns = [Turn(text="x") for _ in range(4)]
    async with project_scene(tmp_path, *turns) as here:
        await here.run()
        assert "theirs" not in offered(here)
        TrustedProjects(here.runtime.paths).trust(here.cwd)
        await here.run()
        assert offered(here)[-1] == "theirs"
        path = here.cwd / ".lemon" / "extensions" / "project.py"
        path.write_text(path.read_text().replace("hello", "HELLO"))
        await here.run()
        assert "theirs" not in offered(here)
        (row,) = (await ask(here, "load_extensions", [str(here.cwd)]))["not_loaded"]
        assert row["name"] == "project"
        assert row["reason"] == f"the project is not trusted: lemon config trust {here.cwd}"


async def test_a_reload_is_refused_where_commands_are_confined(tmp_path: Path) -> None:
    turns = (
        tool_turn("extensions_status", action="reload"),
        Turn(text="x"),
        tool_turn("extensions_status", action="reload", include_details=True),
        Turn(text="y"),
    )
    async with scene(tmp_path, *turns) as here:
        await here.run(policy=ToolPolicy.parse({"deny": ["bash"]}))
        assert "are not reloaded under a policy that confines commands" in last_result(here)
        await here.run()
        first, _, rest = last_result(here).partition("\n")
        assert first == "Extensions were read again; their tools change with the next run."
        assert json.loads(rest)["totals"]["extensions"] == 0


async def test_what_may_be_asked_about_extensions(tmp_path: Path) -> None:
    """Specification lemon_core 5.3: the callbacks with these names."""
    body = """
def tools(self, cwd):
    return [made("bash", "x"), made("own", "x")]
def providers(self):
    class Api:
        def events(self, request): ...
        def put(self, *a): ...
        def search(self, *a): ...
    return [Provider("model", "anthropic_messages", Api()), Provider("model", "acme", Api()),
            Provider("memory", "notes", Api())]
def config_schema(self):
    return {"type": "object"}
"""
    write_extension(tmp_path / "ext", "rich", body)
    (tmp_path / "ext" / "bad.py").write_text("x = 1\n")
    async with scene(tmp_path) as here:
        configured(here, tmp_path / "ext")
        loaded = await ask(here, "load_extensions", [])
        assert [each["name"] for each in loaded["extensions"]] == ["rich"]
        assert [each["name"] for each in loaded["load_errors"]] == ["bad"]
        assert (loaded["validation_errors"], loaded["not_loaded"]) == ([], [])
        (info,) = await ask(here, "extension_info", loaded["extensions"])
        assert info["config_schema"] == {"type": "object"}
        assert [each["name"] for each in info["tool_details"]] == ["bash", "own"]
        providers = await ask(here, "extension_providers", ["rich"])
        assert [(each["name"], each["is_used"]) for each in providers["registered"]] == [
            ("acme", True),
            ("notes", False),
        ]
        assert [(each["name"], each["winner"]) for each in providers["conflicts"]] == [
            ("anthropic_messages", "built-in")
        ]
        conflicts = await ask(here, "tool_conflicts", str(here.cwd))
        assert conflicts["conflicts"] == [
            {"tool_name": "bash", "winner": "built_in", "shadowed": ["extension:rich"]}
        ]
        assert (conflicts["counts"]["extension"], len(conflicts["load_errors"])) == (2, 1)
        assert await ask(here, "extension_dirs", "/x") == [
            str(tmp_path / "agent" / "extensions"),
            "/x/.lemon/extensions",
        ]
        assert await ask(here, "extension_info", ["nobody"]) == []


async def test_an_extension_speaks_an_api_of_its_own(tmp_path: Path) -> None:
    """A `[providers.<name>]` block names it as its `api`; without the extension it is unknown."""
    asked: list[AdapterRequest] = []

    class Wire:
        def events(self, request: AdapterRequest) -> Any:
            asked.append(request)
            adapter = builtin_adapter("openai_completions")
            assert adapter is not None
            return adapter.events(request)

    module = "acme_wire_of_the_test"
    wire = f"__import__('sys').modules[{module!r}].wire"
    body = f"def providers(self):\n    return [Provider('model', 'acme', {wire})]"
    write_extension(tmp_path / "ext", "acme", body)
    holder = ModuleType(module)
    holder.wire = Wire()  # type: ignore[attr-defined]
    sys.modules[module] = holder
    try:
        async with scene(tmp_path, Turn(text="by acme")) as here:
            config = here.runtime.config
            row = config.providers["openai"].model_copy(update={"api": "acme", "models": ("m",)})
            here.runtime.config = config.model_copy(update={"providers": {"acme_inc": row}})
            failed = await here.run(meta={"model": "acme_inc:m"})
            assert not failed.completed.ok
            configured(here, tmp_path / "ext")
            live = await here.run(meta={"model": "acme_inc:m"})
            assert live.completed.answer == "by acme"
            assert [each.model.api for each in asked] == ["acme"]
    finally:
        del sys.modules[module]


async def test_tools_of_other_apps_are_offered_for_the_session_and_hide_none_of_ours(
    tmp_path: Path,
) -> None:
    """Specification coding_agent 6, and lemon_agent 7: they register a factory."""
    asked: list[ToolOptions] = []

    async def execute(call: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text(f"in {call.cwd}")

    async def factory(cwd: str | None, options: ToolOptions) -> AgentTool | None:
        asked.append(options)
        return AgentTool("theirs", "Theirs.", {"type": "object"}, execute)

    async with scene(tmp_path, tool_turn("theirs"), Turn(text="x"), Turn(text="y")) as here:
        registry = here.runtime.service(ToolRegistry.of)
        registry.register("theirs", factory)
        registry.register("bash", factory)
        live = await here.run()
        assert last_result(here) == f"in {here.cwd}"
        assert offered(here).count("bash") == 1
        assert offered(here)[-1] == "theirs"
        (options,) = asked
        resume = live.completed.resume
        assert resume is not None
        assert (options.session_scope, options.session_id) == ("main", resume.value)
        assert options.run_id == live.handle.run_ref
        # Nobody has classed it, so it counts as dangerous and external.
        await here.run(policy=ToolPolicy.of_profile("safe_mode"))
        assert "theirs" not in offered(here)
