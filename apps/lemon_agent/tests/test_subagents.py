from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from lemon_agent import (
    AbortSignal,
    AgentToolResult,
    Budget,
    LoopBudgetExhausted,
    ToolCallContext,
)
from lemon_agent.subagents import AgentKey, AgentRegistry, AlreadyRegistered, SubagentGroup
from lemon_agent.tests.harness import HeldTool, Scene, calls, make_tool, scene
from lemon_ai.testing import FakeUsage, Turn

pytestmark = pytest.mark.anyio

KEY = AgentKey("s1", "task", 1)


@asynccontextmanager
async def group(*turns: Turn) -> AsyncIterator[tuple[Scene, AgentRegistry, SubagentGroup]]:
    """A group of agents that talk to one scripted model."""
    registry = AgentRegistry()
    with anyio.fail_after(5):
        async with scene(*turns) as s, SubagentGroup(registry) as children:
            yield s, registry, children


def test_the_registry_finds_agents_by_key_session_and_role() -> None:
    registry = AgentRegistry()
    one, two = object(), object()
    first = registry.register(KEY, one, {"task": "t"})  # type: ignore[arg-type]
    registry.register(AgentKey("s2", "task"), two)  # type: ignore[arg-type]
    registry.register(AgentKey("s1", "agent"), two)  # type: ignore[arg-type]
    assert registry.lookup(KEY) is first
    assert first.metadata == {"task": "t"}
    assert [e.key.role for e in registry.list(session_id="s1")] == ["task", "agent"]
    assert registry.count(role="task") == 2
    assert registry.count() == 3
    with pytest.raises(AlreadyRegistered, match="task/1 runs in session s1"):
        registry.register(KEY, two)  # type: ignore[arg-type]
    registry.unregister(KEY)
    registry.unregister(KEY)
    assert registry.lookup(KEY) is None


@pytest.mark.behaviour("lemon_agent.25")
async def test_an_abort_of_the_parent_stops_its_child() -> None:
    parent, tool = AbortSignal(), HeldTool("hold")
    async with group(calls("hold")) as (s, _, children):
        agent = await children.start(s.config(), tools=[tool.tool()], parent=parent)
        agent.prompt("work")
        await tool.inside.wait()
        parent.abort()
        await agent.wait_for_idle(5)
        assert tool.cancelled
        # A run that begins afterwards asks no model.
        agent.prompt("again")
        await agent.wait_for_idle(5)
        assert len(s.adapter.requests) == 1


@pytest.mark.behaviour("lemon_agent.25")
async def test_an_entry_goes_when_its_agent_ends_for_any_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with group() as (s, registry, children):
        agent = await children.start(s.config(), key=KEY)
        assert registry.lookup(KEY) is not None
        with pytest.raises(AlreadyRegistered):
            await children.start(s.config(), key=KEY)
        assert registry.lookup(KEY) is not None
        await children.stop(agent)
        assert registry.lookup(KEY) is None
        assert children.count == 0

        # A crash inside the agent's own task.
        agent = await children.start(s.config(), key=KEY)

        def crash(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(agent, "_on_event", crash)
        agent.prompt("work")
        while registry.lookup(KEY) is not None:
            await anyio.lowlevel.checkpoint()
        assert children.count == 0


@pytest.mark.behaviour("lemon_agent.25")
async def test_stopping_all_waits_until_nothing_is_left() -> None:
    tools = [HeldTool(f"hold{n}") for n in range(3)]
    async with group(*(calls(t.name) for t in tools)) as (s, registry, children):
        for number, tool in enumerate(tools):
            agent = await children.start(
                s.config(), key=AgentKey("s1", "task", number), tools=[tool.tool()]
            )
            agent.prompt("work")
            await tool.inside.wait()
        assert len(children.list()) == 3
        await children.stop_all()
        assert [tool.cancelled for tool in tools] == [True] * 3
        assert (children.count, registry.count()) == (0, 0)
        assert not await children.stop_by_key(AgentKey("s1", "task", 0))


async def test_leaving_the_group_stops_its_agents() -> None:
    tool = HeldTool("hold")
    async with group(calls("hold")) as (s, registry, children):
        agent = await children.start(s.config(), key=KEY, tools=[tool.tool()])
        agent.prompt("work")
        await tool.inside.wait()
    assert tool.cancelled
    assert registry.count() == 0


@pytest.mark.behaviour("lemon_agent.29")
async def test_a_subagent_stops_at_its_budget() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("ok")

    turns = [Turn(tool_calls=calls("work").tool_calls, usage=FakeUsage(60, 0)) for _ in range(3)]
    async with group(*turns) as (s, _, children):
        agent = await children.start(
            s.config(budget=Budget(max_tokens=100)), tools=[make_tool("work", work)]
        )
        events = agent.subscribe()
        agent.prompt("work")
        await agent.wait_for_idle(5)
        seen = await events.receive_batch()
        assert len(s.adapter.requests) == 2
    assert [e.reason for e in seen if isinstance(e, LoopBudgetExhausted)] == [
        "max_tokens_exhausted"
    ]
