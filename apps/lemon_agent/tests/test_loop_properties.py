"""The promises of the loop, whatever model and tools do and whenever somebody interferes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_agent import (
    AgentEvent,
    AgentTool,
    AgentToolResult,
    QueuedMessage,
    ToolCallContext,
    ToolError,
)
from lemon_agent.tests.harness import TERMINAL, Scene, make_tool, scene, user
from lemon_ai import AssistantMessage, get_tool_calls
from lemon_ai.testing import FakeToolCall, HttpError, Turn

Interference = Literal["nothing", "steer", "redirect", "abort", "cancel"]

CALLS = st.builds(
    FakeToolCall,
    st.sampled_from(["fine", "failing", "crashing", "yielding", "alone", "missing"]),
    st.sampled_from([{}, {"n": 1}, {"n": "x"}, '{"n": 1']),
    pieces=st.integers(1, 3),
)
TURNS = st.one_of(
    st.builds(Turn, text=st.lists(st.sampled_from(["a ", "b "]), max_size=3)),
    st.builds(
        Turn,
        text=st.sampled_from(["", "so: "]),
        tool_calls=st.lists(CALLS, min_size=1, max_size=4),
    ),
    st.builds(Turn, text=st.just("half"), disconnect=st.just(True)),
    st.builds(Turn, http_error=st.builds(HttpError, st.sampled_from([400, 401]))),
)


def tools(ran: list[str]) -> list[AgentTool]:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}

    async def fine(context: ToolCallContext) -> AgentToolResult:
        ran.append(context.tool_call_id)
        return AgentToolResult.of_text("ok")

    async def failing(context: ToolCallContext) -> AgentToolResult:
        ran.append(context.tool_call_id)
        raise ToolError("no")

    async def crashing(context: ToolCallContext) -> AgentToolResult:
        ran.append(context.tool_call_id)
        raise ZeroDivisionError

    async def yielding(context: ToolCallContext) -> AgentToolResult:
        ran.append(context.tool_call_id)
        for _ in range(3):
            context.on_update(AgentToolResult.of_text("..."))
            await anyio.lowlevel.checkpoint()
        return AgentToolResult.of_text("ok")

    return [
        make_tool("fine", fine, parameters),
        make_tool("failing", failing, parameters),
        make_tool("crashing", crashing, parameters),
        make_tool("yielding", yielding, parameters),
        make_tool("alone", yielding, parameters, exclusive=True),
    ]


class Interfering:
    """Does one thing at one event of the run."""

    def __init__(self, s: Scene, scope: anyio.CancelScope, what: Interference, at: int) -> None:
        self.s, self.scope, self.what, self.at = s, scope, what, at
        self.queue: list[QueuedMessage] = []

    def drain(self) -> Sequence[QueuedMessage]:
        taken, self.queue = self.queue, []
        return taken

    def on_event(self, _: AgentEvent) -> None:
        if len(self.s.events) != self.at:
            return
        match self.what:
            case "steer":
                self.queue.append(QueuedMessage(user("steered")))
            case "redirect":
                self.queue.append(QueuedMessage(user("redirected")))
                self.s.signal.request_redirect()
            case "abort":
                self.s.signal.abort()
            case "cancel":
                self.scope.cancel()
            case "nothing":
                pass


async def play(turns: list[Turn], what: Interference, at: int, concurrency: int | None) -> None:
    ran: list[str] = []
    async with scene(*turns, default=Turn(text="the end")) as s:
        with anyio.CancelScope() as scope:
            interfering = Interfering(s, scope, what, at)
            s.on_event = interfering.on_event
            created: Any = await s.run(
                tools=tools(ran),
                max_tool_concurrency=concurrency,
                max_tool_turns=5,
                get_steering_messages=interfering.drain,
            )
            assert created == s.messages
        s.assert_sound()
        assert s.kinds[:4] == [
            "agent_start",
            "tool_schema_snapshot",
            "turn_start",
            "loop_state_transition",
        ]
        assert set(s.kinds[:-1]).isdisjoint(TERMINAL)
        # A tool that has run is never run again, and only calls in the history are run at all.
        assert len(ran) == len(set(ran))
        assert set(ran) <= _call_ids(s)
        assert asyncio.all_tasks() == {asyncio.current_task()}


def _call_ids(s: Scene) -> set[str]:
    answers = [message for message in s.messages if isinstance(message, AssistantMessage)]
    return {call.id for answer in answers for call in get_tool_calls(answer)}


def _with_own_ids(turns: list[Turn]) -> list[Turn]:
    """The turns with call ids that are unique over the run."""
    return [
        Turn(
            text=turn.text,
            tool_calls=[
                FakeToolCall(call.name, call.arguments, f"t{t}c{c}", call.pieces)
                for c, call in enumerate(turn.tool_calls)
            ],
            http_error=turn.http_error,
            disconnect=turn.disconnect,
        )
        for t, turn in enumerate(turns)
    ]


@settings(max_examples=200, deadline=None)
@given(
    turns=st.lists(TURNS, max_size=4).map(_with_own_ids),
    what=st.sampled_from(["nothing", "steer", "redirect", "abort", "cancel"]),
    at=st.integers(1, 60),
    concurrency=st.sampled_from([None, 1, 2]),
)
def test_every_run_ends_once_leaves_a_sound_history_and_no_task(
    turns: list[Turn], what: Interference, at: int, concurrency: int | None
) -> None:
    anyio.run(play, turns, what, at, concurrency)
