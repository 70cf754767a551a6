"""Cases that have gone wrong in systems like this one, each with the least input that shows it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from lemon_agent import (
    AbortSignal,
    Agent,
    AgentMessage,
    AgentToolResult,
    Compacted,
    Compaction,
    CompactionResult,
    RunFailed,
    ToolCallContext,
    ToolError,
    validate_transcript,
)
from lemon_agent.context import estimate_size
from lemon_agent.tests.harness import HeldTool, calls, error_type, make_tool, scene, user
from lemon_ai import AssistantMessage
from lemon_ai.testing import FakeToolCall, FakeUsage, HttpError, Turn

pytestmark = pytest.mark.anyio


async def say(messages: Sequence[AgentMessage], signal: AbortSignal) -> str:
    return "what was done so far"


async def nothing(result: CompactionResult) -> None:
    pass


def compaction(window: int, keep_recent_tokens: int = 20_000) -> Compaction:
    return Compaction(
        context_window=window,
        summarize=say,
        persist=nothing,
        keep_recent_tokens=keep_recent_tokens,
    )


@pytest.mark.behaviour("lemon_agent.110")
async def test_a_message_after_a_detected_loop_is_answered() -> None:
    turns = [Turn(tool_calls=[FakeToolCall("missing", {"n": 1})]) for _ in range(5)]
    async with scene(*turns, calls("missing"), Turn(text="hello again")) as s:
        async with Agent(s.config(), follow_up_grace_ms=0) as agent:
            agent.prompt("go")
            await agent.wait_for_idle(5)
            before = agent.state
            agent.prompt("rather something else")
            await agent.wait_for_idle(5)
            after = agent.state
            last = agent.messages[-1]
        assert "failed 5 times in a row" in (before.error or "")
        assert after.error is None
        assert isinstance(last, AssistantMessage)
        assert last.stop_reason == "stop"


@pytest.mark.behaviour("lemon_agent.111")
@pytest.mark.parametrize("is_missing", [True, False])
async def test_a_model_that_repeats_a_failing_call_is_stopped_and_its_cost_is_known(
    is_missing: bool,
) -> None:
    ran = 0

    async def fail(_: ToolCallContext) -> AgentToolResult:
        nonlocal ran
        ran += 1
        raise ToolError("no such file")

    tools = [] if is_missing else [make_tool("look", fail)]
    always = Turn(tool_calls=[FakeToolCall("look", {"path": "x"})], usage=FakeUsage(100, 10))
    async with scene(default=always) as s:
        await s.run(tools=tools, max_tool_turns=None)
        s.assert_sound()
        assert len(s.adapter.requests) == 5
    assert isinstance(s.terminal, RunFailed)
    assert s.terminal.reason == "loop_detected"
    assert ran == (0 if is_missing else 5)
    spent = [
        m.usage.total_tokens for m in s.messages if isinstance(m, AssistantMessage) and m.usage
    ]
    assert spent == [110] * 5


@pytest.mark.behaviour("lemon_agent.112")
async def test_thirty_large_results_without_a_user_message_stay_within_the_window() -> None:
    async def read(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("r" * 20_000)

    turns = [Turn(tool_calls=[FakeToolCall("read", {"n": n})], usage=None) for n in range(30)]
    async with scene(*turns, Turn(text="done")) as s:
        await s.run(
            tools=[make_tool("read", read)], compact=compaction(100_000), max_tool_turns=None
        )
        s.assert_sound()
        requests = [list(request.context.messages) for request in s.adapter.requests]
    assert s.kinds[-1] == "agent_end"
    assert len(requests) == 31
    for request in requests:
        assert estimate_size(request) // 4 < 90_000
        assert validate_transcript(request) == []
    # Each saved a good deal, so none follows right after another one.
    passes = [event for event in s.events if isinstance(event, Compacted)]
    assert 1 <= len(passes) <= 3
    assert all(event.tokens_after < event.tokens_before / 2 for event in passes)


@pytest.mark.behaviour("lemon_agent.113")
async def test_without_figures_the_size_is_estimated_and_old_ones_start_nothing() -> None:
    overloaded = Turn(http_error=HttpError(529))
    history: list[AgentMessage] = [
        user("x" * 4 * 600),
        AssistantMessage(stop_reason="stop").model_copy(
            update={"content": [], "usage": None},
        ),
        user("y" * 4 * 350),
    ]
    turns = [overloaded] * 4 + [Turn(text="fine", usage=FakeUsage(950, 1)), Turn(text="again")]
    async with scene(*turns) as s:
        config = s.config(compact=compaction(1_000, keep_recent_tokens=200))
        async with Agent(config, messages=history, follow_up_grace_ms=0) as agent:
            events = agent.subscribe()
            # A fifth failure in a row would open the circuit breaker.
            for _ in range(4):
                agent.prompt("hello")
                await agent.wait_for_idle(5)
            # The provider never said how much it was; the estimate did.
            first = [e for e in await events.receive_batch() if isinstance(e, Compacted)]
            assert len(first) == 1
            agent.prompt("hello")
            await agent.wait_for_idle(5)
            agent.prompt("hello")
            await agent.wait_for_idle(5)
            later = [e for e in await events.receive_batch() if isinstance(e, Compacted)]
    # The figure of the success is of the shortened context; it starts one pass, and the messages
    # that this one keeps say nothing about what follows.
    assert len(later) == 1


@pytest.mark.behaviour("lemon_agent.114")
async def test_a_cancellation_that_leaks_from_a_tool_ends_that_call_alone() -> None:
    async def leaks(_: ToolCallContext) -> AgentToolResult:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                pass
        # A library that lets its own cancellation out looks like this.
        raise anyio.get_cancelled_exc_class()("leaked")

    held = HeldTool("held")
    async with (
        scene(calls("held"), calls("leaks"), Turn(text="went on"), Turn(text="held")) as s,
        Agent(s.config(), tools=[held.tool()], follow_up_grace_ms=0) as other,
    ):
        other.prompt("wait")
        await held.inside.wait()
        await s.run(tools=[make_tool("leaks", leaks)])
        (result,) = s.results
        assert error_type(result) == "tool_exception"
        assert s.kinds[-1] == "agent_end"
        # The other conversation has not been touched, and a real stop is honoured at once.
        assert not held.cancelled
        other.abort()
        await other.wait_for_idle(5)
        assert held.cancelled


@pytest.mark.behaviour("lemon_agent.115")
@pytest.mark.parametrize("cut", range(1, 33))
async def test_half_of_a_call_is_never_run_wherever_it_is_cut(cut: int) -> None:
    whole = '{"path": "a.txt", "text": "done"}'
    assert cut < len(whole)
    ran: list[dict[str, object]] = []

    async def write(call: ToolCallContext) -> AgentToolResult:
        ran.append(call.params)
        return AgentToolResult.of_text("ok")

    turns = [
        Turn(tool_calls=[FakeToolCall("write", whole[:cut])]),
        Turn(tool_calls=[FakeToolCall("write", whole)]),
        Turn(text="done"),
    ]
    async with scene(*turns) as s:
        await s.run(tools=[make_tool("write", write)])
        s.assert_sound()
    first, second = s.results
    assert (first.is_error, second.is_error) == (True, False)
    assert ran == [{"path": "a.txt", "text": "done"}]


@pytest.mark.behaviour("lemon_agent.116")
@pytest.mark.parametrize("empty", [Turn(text=""), Turn(text="  \n"), Turn(thinking="only thought")])
async def test_an_empty_answer_does_not_spoil_the_session(empty: Turn) -> None:
    async def blank(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("")

    async with scene(empty, calls("blank"), Turn(text="fine")) as s:
        tools = [make_tool("blank", blank)]
        async with Agent(s.config(), tools=tools, follow_up_grace_ms=0) as agent:
            agent.prompt("one")
            await agent.wait_for_idle(5)
            agent.prompt("two")
            await agent.wait_for_idle(5)
            assert agent.state.error is None
            assert isinstance(agent.messages[-1], AssistantMessage)
