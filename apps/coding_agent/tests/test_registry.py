"""Which tools a run has (specification coding_agent 6, 11.11, 11.25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coding_agent.foreign_tools import ForeignTool
from coding_agent.registry import ToolRegistry
from coding_agent.tests.askers import Answers, asker
from coding_agent.tests.harness import details, tool_env
from coding_agent.tools.toolset import ShellSettings
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, SchemaCache, ToolCallContext
from lemon_core.config.tools import Web, WebFetch, WebSearch
from lemon_core.tool_classes import ToolClassTable
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

CHANGING = ["write", "edit", "hashline_edit", "patch", "bash", "jobs", "checkpoint"]
EXTERNAL = ["webfetch", "websearch"]
ALL = [
    *("read", "write", "edit", "hashline_edit", "patch", "ls", "find", "grep"),
    *("bash", "jobs", "todo", "checkpoint", "webfetch", "websearch"),
]


def bound(folder: Path, policy: Mapping[str, object]) -> list[AgentTool]:
    env = tool_env(folder, policy=ToolPolicy.parse(policy))
    return ToolRegistry(ShellSettings()).bind(env, ToolClassTable(), asker(Answers()))


def names(folder: Path, **policy: object) -> list[str]:
    return [tool.name for tool in bound(folder, policy)]


@pytest.mark.behaviour("coding_agent.25")
def test_the_order_is_fixed_and_the_schemas_are_the_same_objects(tmp_path: Path) -> None:
    registry, cache = ToolRegistry(ShellSettings()), SchemaCache()
    env = tool_env(tmp_path)
    one = registry.bind(env, ToolClassTable(), asker(Answers()))
    other = registry.bind(env, ToolClassTable(), asker(Answers()))
    assert [tool.name for tool in one] == ALL
    assert cache.snapshot(one) is cache.snapshot(other)


def test_every_tool_declares_its_classes() -> None:
    table = ToolClassTable()
    ToolRegistry(ShellSettings()).declare(table)
    dangerous = [name for name in ALL if "dangerous" in table.classes(name)]
    assert dangerous == CHANGING
    assert [name for name in ALL if "external" in table.classes(name)] == EXTERNAL
    assert not any("delegation" in table.classes(name) for name in ALL)


def test_a_policy_leaves_what_it_permits(tmp_path: Path) -> None:
    assert names(tmp_path, profile="full_access") == ALL
    # What is as strong as the shell goes with it.
    assert set(ALL) - set(names(tmp_path, deny=["bash"])) == {"bash", "jobs"}
    assert names(tmp_path, profile="no_external") == [n for n in ALL if n not in EXTERNAL]
    assert names(tmp_path, allow=["grep", "read"]) == ["read", "grep"]
    assert names(tmp_path, profile="safe_mode") == [n for n in ALL if n not in CHANGING]
    assert names(tmp_path, profile="read_only") == ["read", "ls", "find", "grep"]


def test_tools_of_the_web_can_be_switched_off() -> None:
    off = Web(search=WebSearch(enabled=False), fetch=WebFetch(enabled=False))
    left = [definition.name for definition in ToolRegistry(ShellSettings(), off).definitions]
    assert left == [name for name in ALL if name not in EXTERNAL]


@pytest.mark.behaviour("coding_agent.11")
@pytest.mark.parametrize(
    "policy",
    [
        {"require_approval": ["write"]},
        {"approvals": {"write": "always"}},
        {"approvals": {"write": "dangerous"}},
    ],
)
async def test_a_call_that_needs_an_approval_is_refused_and_never_runs(
    tmp_path: Path, policy: Mapping[str, object]
) -> None:
    """There is nobody to ask in this run."""
    write = next(tool for tool in bound(tmp_path, policy) if tool.name == "write")
    params: dict[str, Any] = {"path": "a", "content": "x"}
    context = ToolCallContext("c", params, AbortSignal(), lambda _: None)
    result = await write.execute(context)
    assert details(result) == {"reason": "approval_error"}
    assert result.is_error
    assert "nobody can be asked" in result.text
    assert "was not run" in result.text
    assert list(tmp_path.iterdir()) == []


async def test_a_machine_may_want_every_command_approved(tmp_path: Path) -> None:
    """Specification lemon_core 15; the policy of the run wants nothing approved."""
    env = tool_env(tmp_path)
    asking = replace(
        env, environ={**env.environ, "LEMON_TERMINAL_BACKENDS_REQUIRE_APPROVAL": "local"}
    )
    tools = ToolRegistry(ShellSettings()).bind(asking, ToolClassTable(), asker(Answers()))
    bash = next(tool for tool in tools if tool.name == "bash")
    params: dict[str, Any] = {"command": "touch ran"}
    result = await bash.execute(ToolCallContext("c", params, AbortSignal(), lambda _: None))
    assert details(result) == {"reason": "approval_error"}
    assert not (tmp_path / "ran").exists()


async def test_tools_of_elsewhere_obey_the_policy_and_hide_none_of_ours(tmp_path: Path) -> None:
    """Specification lemon_gateway 9: what the gateway lends is a tool like any other."""

    async def execute(*_: object) -> AgentToolResult:
        return AgentToolResult.of_text("done")

    names = ("bash", "cron", "sms")
    lent = [ForeignTool.of(AgentTool(name, "", {}, execute, "lent"), "gateway") for name in names]
    table = ToolClassTable()
    table.classify("sms", frozenset({"external"}))

    def offered(policy: Mapping[str, object]) -> list[AgentTool]:
        env = tool_env(tmp_path, policy=ToolPolicy.parse(policy))
        return ToolRegistry(ShellSettings()).bind(env, table, asker(Answers()), lent)

    whole = offered({"profile": "full_access"})
    assert [tool.name for tool in whole][-2:] == ["cron", "sms"]
    assert [tool.name for tool in whole if tool.label == "lent"] == ["cron", "sms"]
    safe = offered({"profile": "safe_mode"})
    assert [tool.name for tool in safe if tool.label == "lent"] == ["sms"]
    asking = offered({"require_approval": ["cron"]})[-2]
    context = ToolCallContext("c", {}, AbortSignal(), lambda _: None)
    assert details(await asking.execute(context)) == {"reason": "approval_error"}


async def test_a_tool_that_asks_by_itself_may_be_told_not_to(tmp_path: Path) -> None:
    """Specification coding_agent 6: WASM tools that reach out."""

    async def execute(call: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("done")

    tool = AgentTool("reaching", "", {}, execute)
    lent = [replace(ForeignTool.of(tool, "wasm"), asks=True)]

    async def said(policy: Mapping[str, object]) -> str:
        env = tool_env(tmp_path, policy=ToolPolicy.parse(policy))
        registry = ToolRegistry(ShellSettings())
        bound = registry.bind(env, ToolClassTable(), asker(Answers()), lent)
        found = next(each for each in bound if each.name == "reaching")
        context = ToolCallContext("c", {}, AbortSignal(), lambda _: None)
        return (await found.execute(context)).text

    assert "nobody can be asked" in await said({})
    assert "nobody can be asked" in await said({"approvals": {"reaching": "always"}})
    assert await said({"approvals": {"reaching": "never"}}) == "done"
