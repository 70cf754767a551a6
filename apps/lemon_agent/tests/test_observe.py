"""Telemetry and introspection of the loop (specification 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from lemon_agent import (
    AbortSignal,
    Agent,
    AgentContext,
    AgentTool,
    AgentToolResult,
    Budget,
    LoopConfig,
    ToolCallContext,
    continue_loop,
    run_loop,
)
from lemon_agent.observe import watcher
from lemon_agent.subagents import AgentKey, AgentRegistry, SubagentGroup
from lemon_agent.tests.harness import make_tool, user
from lemon_agent.types import WatchLoop
from lemon_ai import Client
from lemon_ai.testing import FakeToolCall, ScriptedAdapter, Turn, scripted_model
from lemon_core.introspection import Introspection
from lemon_core.store import Store
from lemon_core.store.memory import MemoryBackend
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

CANARY = "canary words"


@dataclass
class Watched:
    """A telemetry and an introspection, and what reached them."""

    telemetry: Telemetry
    introspection: Introspection
    clock: FakeClock
    told: list[tuple[str, dict[str, float], dict[str, object]]] = field(default_factory=list)

    @property
    def watch(self) -> WatchLoop:
        return watcher(self.telemetry, self.introspection, self.clock)

    def listen(self) -> None:
        def take(name: str, numbers: Mapping[str, float], metadata: Mapping[str, object]) -> None:
            self.told.append((name.removeprefix("lemon_agent."), dict(numbers), dict(metadata)))

        self.telemetry.attach("lemon_agent", take)

    def named(self, name: str) -> list[dict[str, object]]:
        return [{**numbers, **rest} for told, numbers, rest in self.told if told == name]


async def watched(*, enabled: bool = True) -> Watched:
    clock, store = FakeClock(), Store(MemoryBackend())
    await store.open()
    return Watched(Telemetry(), Introspection(store, clock, enabled=enabled), clock)


async def play(w: Watched, *turns: Turn, tools: tuple[AgentTool, ...] = (), **more: Any) -> None:
    config = LoopConfig(
        model=scripted_model(),
        stream_fn=Client(env={}, adapters={"scripted": ScriptedAdapter(turns)}).stream,
        watch=w.watch,
    )
    context = AgentContext("", (), tools)
    signal = AbortSignal()
    with anyio.fail_after(5):
        await run_loop([user(CANARY)], context, replace(config, **more), signal, lambda _: None)


async def test_a_run_with_tools_is_told_without_any_text() -> None:
    w = await watched()
    w.listen()

    async def fail(_: ToolCallContext) -> AgentToolResult:
        raise RuntimeError(CANARY)

    tools = (make_tool("look up"), make_tool("broken", fail))
    calls = [FakeToolCall(" look  up ", {"q": CANARY}), FakeToolCall("broken")]
    await play(w, Turn(tool_calls=calls), Turn(text=CANARY), tools=tools)
    names = [name for name, _, _ in w.told]
    assert names[0] == "loop.start"
    assert names[-1] == "loop.end"
    assert w.named("loop.end") == [{"duration_ms": 0, "status": "completed"}]
    assert w.named("tool_schema_snapshot.created") == [{"tool_count": 2}]
    assert {"tool": "look up", "duration_ms": 0} in w.named("tool_task.end")
    assert [e["reason"] for e in w.named("tool_task.error")] == ["tool_exception"]
    assert w.named("tool_call.name_normalized") == [{"tool": "look up"}]
    assert w.named("tool_result.emit") == [{"trust": "trusted"}] * 2
    assert len(w.named("context.size")) == 2
    moves = [e["target"] for e in w.named("loop.state_transition")]
    assert moves[:2] == ["initializing", "await_model"]
    records = await w.introspection.query(limit=10)
    # The clock stands still here, so their order is not told by their times.
    assert sorted(r.event_type for r in records) == [
        "agent_loop_ended",
        "agent_loop_started",
        "agent_turn_observed",
        "agent_turn_observed",
    ]
    by_type = {r.event_type: r.payload for r in records}
    assert by_type["agent_loop_started"] == {
        "model": f"{scripted_model().provider}:{scripted_model().id}",
        "tool_count": 2,
        "message_count": 0,
        "is_continue": False,
    }
    assert by_type["agent_turn_observed"] == {"has_error": False}
    assert by_type["agent_loop_ended"] == {
        "message_count": 5,
        "had_error": False,
        "was_aborted": False,
    }
    assert CANARY not in repr(w.told) + repr(records)


@pytest.mark.parametrize(
    ("turn", "more", "status"),
    [
        (Turn(text="x"), {}, "completed"),
        (Turn(stream_error={"message": "no", "code": 400}), {}, "error"),
        (Turn(text="x"), {"budget": Budget(max_tokens=0)}, "budget"),
    ],
)
async def test_the_end_says_how_it_ended(turn: Turn, more: dict[str, Any], status: str) -> None:
    w = await watched()
    w.listen()
    await play(w, turn, **more)
    assert [e["status"] for e in w.named("loop.end")] == [status]
    (ended,) = await w.introspection.query(event_type="agent_loop_ended")
    assert ended.payload["had_error"] is (status == "error")


async def test_a_run_that_goes_on_says_so() -> None:
    w = await watched()
    config = LoopConfig(
        model=scripted_model(),
        stream_fn=Client(env={}, adapters={"scripted": ScriptedAdapter([Turn(text="x")])}).stream,
        watch=w.watch,
    )
    with anyio.fail_after(5):
        await continue_loop(AgentContext(messages=[user()]), config, AbortSignal(), lambda _: None)
    (started,) = await w.introspection.query(event_type="agent_loop_started")
    assert (started.payload["is_continue"], started.payload["message_count"]) == (True, 1)


async def test_an_abort_is_told_as_one() -> None:
    w = await watched()
    w.listen()
    signal = AbortSignal()
    signal.abort()
    config = LoopConfig(
        model=scripted_model(),
        stream_fn=Client(env={}, adapters={"scripted": ScriptedAdapter([])}).stream,
        watch=w.watch,
    )
    await run_loop([user()], AgentContext(), config, signal, lambda _: None)
    assert [e["status"] for e in w.named("loop.end")] == ["aborted"]
    (ended,) = await w.introspection.query(event_type="agent_loop_ended")
    assert ended.payload["was_aborted"] is True


async def test_where_nobody_listens_no_run_is_watched() -> None:
    w = await watched(enabled=False)
    config = LoopConfig(model=scripted_model(), stream_fn=Client(env={}).stream)
    assert w.watch(AgentContext(), config) is None
    w.listen()
    assert w.watch(AgentContext(), config) is not None


async def test_a_large_context_is_warned_about() -> None:
    w = await watched()
    w.listen()
    config = LoopConfig(
        model=scripted_model(),
        stream_fn=Client(env={}, adapters={"scripted": ScriptedAdapter([Turn(text="x")])}).stream,
        watch=w.watch,
    )
    with anyio.fail_after(5):
        await run_loop([user("x" * 200_001)], AgentContext(), config, AbortSignal(), lambda _: None)
    assert w.named("context.warning") == [{"chars": 200_001, "level": "warning"}]


async def test_subagents_are_told_at_their_start_and_on_every_way_out() -> None:
    w = await watched()
    w.listen()
    config = LoopConfig(model=scripted_model(), stream_fn=Client(env={}).stream)
    key = AgentKey("s1", "helper")
    with anyio.fail_after(5):
        async with SubagentGroup(AgentRegistry(), w.telemetry.emit) as group:
            agent = await group.start(config, key=key)
            assert isinstance(agent, Agent)
            await group.stop(agent)
            await group.start(config)
    assert [name for name, _, _ in w.told] == [
        "subagent.spawn",
        "subagent.end",
        "subagent.spawn",
        "subagent.end",
    ]
    assert w.named("subagent.end")[0] == {"count": 0, "session_id": "s1", "role": "helper"}
