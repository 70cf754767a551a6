"""The tool calls of one answer, seen through a run of the loop."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from lemon_agent import (
    Aborted,
    AgentEvent,
    AgentToolResult,
    MessageStart,
    RunCanceled,
    ToolCallContext,
    ToolError,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from lemon_agent.tests.harness import (
    HeldTool,
    calls,
    error_type,
    make_tool,
    scene,
    text_of,
)
from lemon_ai import ImageContent, TextContent, ToolResultMessage
from lemon_ai.testing import FakeToolCall, Turn

pytestmark = pytest.mark.anyio

DONE = Turn(text="done")
NUMBERS = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "opt": {"type": ["string", "null"]},
        "flag": {"type": "boolean"},
    },
    "required": ["n"],
}


@pytest.mark.behaviour("lemon_agent.2")
async def test_results_are_in_the_order_of_the_calls_and_ends_in_the_order_of_completion() -> None:
    first_may_end = anyio.Event()

    async def slow(_: ToolCallContext) -> AgentToolResult:
        await first_may_end.wait()
        return AgentToolResult.of_text("slow done")

    async def quick(_: ToolCallContext) -> AgentToolResult:
        first_may_end.set()
        return AgentToolResult.of_text("quick done")

    async with scene(calls("slow", "quick"), DONE) as s:
        await s.run(tools=[make_tool("slow", slow), make_tool("quick", quick)])
        assert s.tool_ends == ["quick", "slow"]
        assert s.shown(1)[-2:] == ["slow done", "quick done"]
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.2")
async def test_with_concurrency_one_calls_run_one_by_one() -> None:
    running, most = 0, 0

    async def count(_: ToolCallContext) -> AgentToolResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return AgentToolResult.of_text("counted")

    async with scene(calls(*["count"] * 4), DONE, calls(*["count"] * 4), DONE) as s:
        await s.run(tools=[make_tool("count", count)])
        assert most == 4
        most = 0
        await s.run(tools=[make_tool("count", count)], max_tool_concurrency=1)
        assert most == 1


async def test_an_exclusive_call_waits_for_those_before_and_those_after_wait_for_it() -> None:
    log: list[str] = []

    async def note(context: ToolCallContext) -> AgentToolResult:
        log.append(f"+{context.params['i']}")
        await anyio.lowlevel.checkpoint()
        log.append(f"-{context.params['i']}")
        return AgentToolResult.of_text("noted")

    names = ["shared", "shared", "alone", "alone", "shared", "shared"]
    turn = Turn(tool_calls=[FakeToolCall(name, {"i": i}) for i, name in enumerate(names)])
    async with scene(turn, DONE) as s:
        await s.run(tools=[make_tool("shared", note), make_tool("alone", note, exclusive=True)])
    assert log == ["+0", "+1", "-0", "-1", "+2", "-2", "+3", "-3", "+4", "+5", "-4", "-5"]


@pytest.mark.behaviour("lemon_agent.3")
@pytest.mark.parametrize(
    ("call", "expected", "text"),
    [
        (FakeToolCall("missing"), "unknown_tool", "no tool 'missing'. Available tools: work"),
        (FakeToolCall("work", {}), "invalid_tool_arguments", '"n" is a required property'),
        (FakeToolCall("work", '{"n": 1'), "invalid_tool_arguments", "not valid JSON"),
        (FakeToolCall("work", {"n": 1}), "tool_error", "the file is locked"),
        (FakeToolCall("work", {"n": 2}), "tool_exception", "KeyError: 'lost'"),
        (FakeToolCall("work", {"n": 3}), "unexpected_tool_result", "returned str"),
        (FakeToolCall("work", {"n": 4}), "unexpected_tool_result", "returned AgentToolResult"),
        (FakeToolCall("work", {"n": 5}), "tool_task_timeout", "stopped after 20 ms"),
        (FakeToolCall("work", {"n": 6}), "tool_exception", "a cancellation inside it escaped"),
    ],
)
async def test_every_failure_of_a_tool_is_a_result_and_the_run_goes_on(
    call: FakeToolCall, expected: str, text: str
) -> None:
    async def work(context: ToolCallContext) -> Any:
        match context.params["n"]:
            case 1:
                raise ToolError("the file is locked")
            case 2:
                raise KeyError("lost")
            case 3:
                return "just text"
            case 4:
                return AgentToolResult(content=["no block"])  # type: ignore[list-item]
            case 5:
                await anyio.sleep_forever()
            case _:
                raise anyio.get_cancelled_exc_class()
        return None

    async with scene(Turn(tool_calls=[call]), DONE) as s:
        await s.run(tools=[make_tool("work", work, NUMBERS)], tool_timeout_ms=20)
        (result,) = s.results
        assert (error_type(result), result.is_error) == (expected, True)
        assert text in text_of(result)
        assert s.terminal.type == "agent_end"
        assert text_of(s.messages[-1]) == "done"
        s.assert_sound()


async def test_the_model_sees_only_the_message_of_a_tool_error() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        raise ToolError("the file is locked")

    async with scene(calls("work"), DONE) as s:
        await s.run(tools=[make_tool("work", work)])
        assert s.shown(1)[-1] == "the file is locked"


@pytest.mark.behaviour("lemon_agent.4")
async def test_arguments_are_coerced_by_schema_and_refused_where_that_cannot_be() -> None:
    seen: list[dict[str, Any]] = []

    async def work(context: ToolCallContext) -> AgentToolResult:
        seen.append(context.params)
        return AgentToolResult.of_text("worked")

    meant = {"n": "3", "tags": "a", "opt": "null", "flag": "TRUE"}
    turn = Turn(tool_calls=[FakeToolCall("work", meant), FakeToolCall("work", {"n": "3x"})])
    async with scene(turn, DONE) as s:
        await s.run(tools=[make_tool("work", work, NUMBERS)])
        assert seen == [{"n": 3, "tags": ["a"], "opt": None, "flag": True}]
        assert error_type(s.results[1]) == "invalid_tool_arguments"
        assert 'n: the value is not of type "integer"' in text_of(s.results[1])
        starts = [event for event in s.events if isinstance(event, ToolExecutionStart)]
        assert meant in [start.args for start in starts]


async def test_a_name_with_stray_white_space_finds_its_tool_and_case_matters() -> None:
    async with scene(calls(" read\u00a0 file ", "Read file"), DONE) as s:
        await s.run(tools=[make_tool("read file")])
        assert [error_type(result) for result in s.results] == [None, "unknown_tool"]


async def test_what_the_tool_gives_reaches_the_result_message() -> None:
    given = AgentToolResult(
        content=(TextContent(text="a page"), ImageContent(data="AAAA")),
        details={"url": "http://x"},
        trust="untrusted",
    )

    async def fetch(_: ToolCallContext) -> AgentToolResult:
        return given

    async with scene(calls("fetch"), DONE) as s:
        await s.run(tools=[make_tool("fetch", fetch)])
        (message,) = s.results
        assert message.content == list(given.content)
        assert (message.details, message.trust, message.is_error) == (
            {"url": "http://x"},
            "untrusted",
            False,
        )
        (end,) = [event for event in s.events if isinstance(event, ToolExecutionEnd)]
        assert end.result is given


async def test_a_trust_that_is_no_word_of_ours_is_trusted() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("x", trust="perhaps")  # type: ignore[arg-type]

    async with scene(calls("work"), DONE) as s:
        await s.run(tools=[make_tool("work", work)])
        assert s.results[0].trust == "trusted"


async def test_updates_are_events_until_the_call_has_ended() -> None:
    late: list[ToolCallContext] = []

    async def work(context: ToolCallContext) -> AgentToolResult:
        context.on_update(AgentToolResult.of_text("half"))
        late.append(context)
        return AgentToolResult.of_text("whole")

    def update_late(event: AgentEvent) -> None:
        if isinstance(event, ToolExecutionEnd):
            late[0].on_update(AgentToolResult.of_text("too late"))

    async with scene(calls("work"), DONE) as s:
        s.on_event = update_late
        await s.run(tools=[make_tool("work", work)])
        updates = [event for event in s.events if isinstance(event, ToolExecutionUpdate)]
        assert [update.partial_result.text for update in updates] == ["half"]
        late[0].on_update(AgentToolResult.of_text("after the run"))
        assert s.terminal is s.events[-1]


async def test_a_tool_knows_its_call_its_directory_and_the_signal() -> None:
    seen: list[ToolCallContext] = []

    async def work(context: ToolCallContext) -> AgentToolResult:
        seen.append(context)
        return AgentToolResult.of_text("ok")

    async with scene(Turn(tool_calls=[FakeToolCall("work", id="call_7")]), DONE) as s:
        await s.run(tools=[make_tool("work", work)], cwd="/somewhere")
        (context,) = seen
        assert (context.tool_call_id, context.cwd, context.run) == ("call_7", "/somewhere", None)
        assert context.signal is s.signal


# -- abort -----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.6")
async def test_abort_keeps_finished_results_interrupts_what_runs_and_drops_what_waits() -> None:
    finished, held, waiting = make_tool("finished"), HeldTool("held"), HeldTool("waiting")

    async with scene(calls("finished", "held", "waiting"), DONE) as s:
        async with anyio.create_task_group() as tasks:
            tools = [finished, held.tool(), waiting.tool()]
            tasks.start_soon(lambda: s.run(tools=tools, max_tool_concurrency=1))
            with anyio.fail_after(5):
                await held.inside.wait()
            s.signal.abort()
        assert isinstance(s.terminal, RunCanceled)
        assert [text_of(result) for result in s.results] == [
            "finished done",
            "interrupted, outcome unknown",
            "not started",
        ]
        assert [error_type(result) for result in s.results] == [None, "aborted", "aborted"]
        assert s.tool_ends == ["finished", "held"]
        assert held.cancelled
        assert not waiting.inside.is_set()
        assert len(s.adapter.requests) == 1
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.6")
async def test_a_tool_that_ignores_the_abort_is_reported_and_waited_for_behind_the_scenes() -> None:
    cleaned_up = anyio.Event()

    async def stubborn(_: ToolCallContext) -> AgentToolResult:
        s.signal.abort()
        with anyio.CancelScope(shield=True):
            await cleaned_up.wait()
        return AgentToolResult.of_text("too late")

    def let_go_at_the_end(event: AgentEvent) -> None:
        if event.type == "canceled":
            cleaned_up.set()

    async with scene(calls("stubborn"), DONE) as s:
        s.on_event = let_go_at_the_end
        await s.run(tools=[make_tool("stubborn", stubborn)])
        assert [text_of(result) for result in s.results] == ["interrupted, outcome unknown"]
        assert s.terminal.type == "canceled"
        s.assert_sound()


async def test_a_timed_out_tool_that_still_cleans_up_does_not_hold_the_run() -> None:
    cleaned_up = anyio.Event()

    async def stubborn(_: ToolCallContext) -> AgentToolResult:
        with anyio.CancelScope(shield=True):
            await cleaned_up.wait()
        return AgentToolResult.of_text("too late")

    def let_go_at_the_end(event: AgentEvent) -> None:
        if event.type == "agent_end":
            cleaned_up.set()

    async with scene(calls("stubborn"), DONE) as s:
        s.on_event = let_go_at_the_end
        await s.run(tools=[make_tool("stubborn", stubborn)], tool_timeout_ms=10)
        assert [error_type(result) for result in s.results] == ["tool_task_timeout"]
        assert s.terminal.type == "agent_end"


@pytest.mark.parametrize("exc", [Aborted(), ToolError("gave up"), OSError("broken pipe")])
async def test_an_error_raised_because_of_the_abort_is_an_interruption(exc: Exception) -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        s.signal.abort()
        raise exc

    async with scene(calls("work")) as s:
        await s.run(tools=[make_tool("work", work)])
        assert [text_of(result) for result in s.results] == ["interrupted, outcome unknown"]


async def test_a_result_given_in_spite_of_the_abort_is_kept() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        s.signal.abort()
        return AgentToolResult.of_text("killed after 3 lines")

    async with scene(calls("work")) as s:
        await s.run(tools=[make_tool("work", work)])
        assert [text_of(result) for result in s.results] == ["killed after 3 lines"]
        assert s.terminal.type == "canceled"


async def test_an_abort_by_a_reader_of_the_results_keeps_them_whole_and_in_order() -> None:
    def abort_at_the_first_result(event: AgentEvent) -> None:
        if isinstance(event, MessageStart) and isinstance(event.message, ToolResultMessage):
            s.signal.abort()

    async with scene(calls("missing", "work", "work")) as s:
        s.on_event = abort_at_the_first_result
        await s.run(tools=[make_tool("work")])
        assert [text_of(result) for result in s.results][1:] == ["not started", "not started"]
        s.assert_sound()


@pytest.mark.parametrize("order", [("missing", "held"), ("held", "missing")])
async def test_an_abort_between_start_and_first_step_starts_nothing(order: list[str]) -> None:
    held = HeldTool("held")

    def abort_at_the_first_start(event: AgentEvent) -> None:
        if isinstance(event, ToolExecutionStart):
            s.signal.abort()

    async with scene(calls(*order)) as s:
        s.on_event = abort_at_the_first_start
        await s.run(tools=[held.tool()])
        texts = {result.tool_name: text_of(result) for result in s.results}
        assert texts["held"] == "not started"
        assert "held" not in s.tool_ends
        assert not held.inside.is_set()
        s.assert_sound()


async def test_when_the_task_is_cancelled_every_call_has_its_result() -> None:
    held, waiting = HeldTool("held"), HeldTool("waiting")

    async with scene(calls("held", "waiting")) as s:
        with anyio.CancelScope() as scope:
            s.on_event = lambda event: (
                scope.cancel() if isinstance(event, ToolExecutionStart) else None
            )
            await s.run(tools=[held.tool(), waiting.tool()], max_tool_concurrency=1)
        assert scope.cancelled_caught
        assert isinstance(s.terminal, RunCanceled)
        assert [text_of(result) for result in s.results] == [
            "interrupted, outcome unknown",
            "not started",
        ]
        s.assert_sound()
