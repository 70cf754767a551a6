"""Which tools a run has (specification coding_agent 6, 11.11, 11.25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coding_agent.registry import ToolRegistry
from coding_agent.tests.askers import Answers, asker
from coding_agent.tests.harness import details, tool_env
from coding_agent.tools.toolset import ShellSettings
from lemon_agent import AbortSignal, AgentTool, SchemaCache, ToolCallContext
from lemon_core.tool_classes import ToolClassTable
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

ALL = ["read", "write", "edit", "ls", "grep", "bash"]


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
    assert dangerous == ["write", "edit", "bash"]
    assert all(table.classes(name) <= {"dangerous"} for name in ALL)


def test_a_policy_leaves_what_it_permits(tmp_path: Path) -> None:
    assert names(tmp_path, profile="full_access") == ALL
    assert names(tmp_path, deny=["bash"]) == ["read", "write", "edit", "ls", "grep"]
    assert names(tmp_path, allow=["grep", "read"]) == ["read", "grep"]
    assert names(tmp_path, profile="safe_mode") == ["read", "ls", "grep"]
    assert names(tmp_path, profile="read_only") == ["read", "ls", "grep"]


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
