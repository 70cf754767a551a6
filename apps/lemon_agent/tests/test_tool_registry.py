from __future__ import annotations

import pytest

from lemon_agent import AgentTool
from lemon_agent.tests.harness import make_tool
from lemon_agent.tool_registry import ToolFactory, ToolOptions, ToolRegistry

pytestmark = pytest.mark.anyio

OPTIONS = ToolOptions(session_key="agent:a:main")


def offering(name: str, seen: list[object] | None = None) -> ToolFactory:
    async def factory(cwd: str | None, options: ToolOptions) -> AgentTool:
        if seen is not None:
            seen.append((cwd, options))
        return make_tool(name)

    return factory


async def at_home(cwd: str | None, options: ToolOptions) -> AgentTool:
    """A factory that is found by its path."""
    return make_tool("by_path")


async def names(registry: ToolRegistry, *taken: str) -> list[str]:
    return [tool.name for tool in await registry.available(taken, "/w", OPTIONS)]


async def test_tools_come_in_the_order_of_registering_and_replace_in_place() -> None:
    registry = ToolRegistry()
    seen: list[object] = []
    for name in ("a", "b", "c"):
        registry.register(name, offering(name))
    registry.register("b", offering("b", seen))
    registry.unregister("a")
    assert registry.all() == ("b", "c")
    assert await names(registry) == ["b", "c"]
    assert seen == [("/w", OPTIONS)]


@pytest.mark.behaviour("lemon_agent.17")
async def test_a_name_that_is_taken_is_not_offered() -> None:
    registry = ToolRegistry()
    asked: list[object] = []
    registry.register("read", offering("read", asked))
    registry.register("sly", offering(" read "))
    registry.register("mine", offering("mine"))
    registry.register("mine_again", offering("mine"))
    assert await names(registry, "read") == ["mine"]
    # Nobody even makes what would not be run.
    assert asked == []


async def test_a_factory_may_decline_fail_or_be_missing() -> None:
    registry = ToolRegistry()

    async def declines(cwd: str | None, options: ToolOptions) -> None:
        return None

    async def fails(cwd: str | None, options: ToolOptions) -> AgentTool:
        raise RuntimeError("no credentials")

    async def errs(cwd: str | None, options: ToolOptions) -> AgentTool:
        return "a tool"  # type: ignore[return-value]

    registry.register("declines", declines)
    registry.register("fails", fails)
    registry.register("errs", errs)
    registry.register("gone", "lemon_agent.nowhere:factory")
    registry.register("by_path", f"{__name__}:at_home")
    assert await names(registry) == ["by_path"]


def test_a_tool_needs_a_name() -> None:
    with pytest.raises(ValueError, match="a tool needs a name"):
        ToolRegistry().register(" ", offering("x"))
