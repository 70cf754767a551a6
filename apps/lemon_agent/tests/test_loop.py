from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest

from lemon_agent import (
    AbortSignal,
    AgentContext,
    AgentEnd,
    AgentEvent,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    Budget,
    CannotContinue,
    LoopBudgetExhausted,
    MessageUpdate,
    NoMessages,
    QueuedMessage,
    RunCanceled,
    RunFailed,
    SchemaSnapshotTaken,
    ToolCallContext,
    ToolError,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolSchemaSnapshot,
    TurnEnd,
    continue_loop,
    run_loop,
)
from lemon_agent.tests.harness import HeldTool, Scene, calls, make_tool, scene, steps, text_of, user
from lemon_ai import (
    AssistantMessage,
    Event,
    EventStream,
    Model,
    ModelCost,
    PartialMessage,
    Usage,
)
from lemon_ai.testing import FakeToolCall, Turn

pytestmark = pytest.mark.anyio

DONE = Turn(text="done")


class Queue:
    """A queue for the loop's drains; it gives everything at once."""

    def __init__(self) -> None:
        self.waiting: list[QueuedMessage] = []

    def add(self, text: str, system_prompt: str | None = None) -> None:
        self.waiting.append(QueuedMessage(user(text), system_prompt))

    def drain(self) -> Sequence[QueuedMessage]:
        taken, self.waiting = self.waiting, []
        return taken

    async def drain_late(self) -> Sequence[QueuedMessage]:
        return self.drain()


def delta_of(event: AgentEvent) -> str | None:
    if isinstance(event, MessageUpdate) and event.assistant_event.type == "text_delta":
        return event.assistant_event.delta
    return None


# -- the plain run ---------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.1")
async def test_the_events_of_a_plain_turn_come_in_order() -> None:
    old: list[AgentMessage] = [user("before"), AssistantMessage(content=[])]
    async with scene(Turn(text=["Hello ", "you"])) as s:
        created = await s.run(user("hi"), messages=old)
        assert s.kinds == [
            "agent_start",
            "tool_schema_snapshot",
            "turn_start",
            "loop_state_transition",
            "message_start",
            "message_end",
            "loop_state_transition",
            "message_start",
            "message_update",
            "message_update",
            "message_update",
            "message_update",
            "message_end",
            "loop_state_transition",
            "turn_end",
            "loop_state_transition",
            "agent_end",
        ]
        assert s.states == ["initializing", "await_model", "normalizing_response", "finalizing"]
        assert [text_of(message) for message in created] == ["hi", "Hello you"]
        assert isinstance(s.terminal, AgentEnd)
        assert list(s.terminal.messages) == created == s.messages
        assert s.adapter.requests[0].context.system_prompt == "be brief"


async def test_the_states_of_a_tool_turn() -> None:
    async with scene(calls("work"), DONE) as s:
        await s.run(tools=[make_tool("work")])
        assert s.states == [
            "initializing",
            "await_model",
            "normalizing_response",
            "executing_tools",
            "awaiting_tool_results",
            "await_model",
            "normalizing_response",
            "finalizing",
        ]
        assert s.kinds.count("turn_start") == s.kinds.count("turn_end") == 2
        ends = [event for event in s.events if isinstance(event, TurnEnd)]
        assert [text_of(result) for result in ends[0].tool_results] == ["work done"]


async def test_continue_answers_the_history_as_it_is() -> None:
    async with scene(DONE) as s:
        context = AgentContext(messages=[user("open question")])
        created = await continue_loop(context, s.config(), s.signal, s.emit)
        assert [text_of(message) for message in created] == ["done"]
        assert s.shown(0) == ["open question"]


async def test_continue_needs_something_to_answer() -> None:
    async with scene() as s:
        with pytest.raises(NoMessages):
            await continue_loop(AgentContext(), s.config(), s.signal, s.emit)
        answered = AgentContext(messages=[AssistantMessage()])
        with pytest.raises(CannotContinue):
            await continue_loop(answered, s.config(), s.signal, s.emit)
        assert s.events == []


@pytest.mark.behaviour("lemon_agent.5")
async def test_a_tool_list_changed_during_a_run_counts_from_the_next_run() -> None:
    async def replace_everything(_: ToolCallContext) -> AgentToolResult:
        tools[:] = [make_tool("work", parameters={"type": "object", "title": "new"})]
        return AgentToolResult.of_text("old code")

    tools: list[AgentTool] = [make_tool("work", replace_everything)]
    async with scene(calls("work"), calls("work"), DONE, calls("work"), DONE) as s:
        await s.run(tools=tools)
        assert [text_of(result) for result in s.results] == ["old code", "old code"]
        shown = [request.context.tools[0].parameters for request in s.adapter.requests]
        assert shown[0] is shown[1] is shown[2]
        s.events.clear()
        await s.run(tools=tools)
        assert [text_of(result) for result in s.results] == ["work done"]
        assert s.adapter.requests[3].context.tools[0].parameters["title"] == "new"


async def test_a_given_snapshot_is_used_and_must_be_of_the_tools() -> None:
    tool = make_tool("work")
    snapshot = ToolSchemaSnapshot.of([tool])
    async with scene(calls("work"), DONE, DONE) as s:
        await s.run(tools=[tool], tool_schema_snapshot=snapshot)
        await s.run(tools=[tool], tool_schema_snapshot=snapshot)
        assert all(r.context.tools is snapshot.tools for r in s.adapter.requests)
        taken = [event for event in s.events if isinstance(event, SchemaSnapshotTaken)]
        assert [event.snapshot for event in taken] == [snapshot, snapshot]
        s.events.clear()
        with pytest.raises(ValueError, match="not of the tools"):
            await s.run(tools=[make_tool("other")], tool_schema_snapshot=snapshot)
        with pytest.raises(ValueError, match="share a name"):
            await s.run(tools=[tool, tool])
        assert s.events == []


@pytest.mark.parametrize("field", ["max_tool_turns", "max_tool_concurrency", "tool_timeout_ms"])
async def test_limits_below_one_are_refused(field: str) -> None:
    async with scene() as s:
        with pytest.raises(ValueError, match=field):
            s.config(**{field: 0})


async def test_a_crash_of_the_loop_itself_is_a_terminal_event() -> None:
    def crash() -> Sequence[QueuedMessage]:
        raise ZeroDivisionError("boom")

    async with scene(DONE) as s:
        await s.run(get_steering_messages=crash)
        assert s.terminal == RunFailed("loop_crashed", "ZeroDivisionError: boom", tuple(s.messages))


# -- steering, redirect, follow-up -----------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.7")
async def test_a_steer_during_tools_comes_after_the_whole_batch_and_before_the_next_call() -> None:
    queue = Queue()

    async def work(_: ToolCallContext) -> AgentToolResult:
        queue.add("and be quick")
        return AgentToolResult.of_text("worked")

    async with scene(calls("work", "other"), DONE) as s:
        tools = [make_tool("work", work), make_tool("other")]
        await s.run(tools=tools, max_tool_concurrency=1, get_steering_messages=queue.drain)
        assert s.shown(1) == ["hi", "", "worked", "other done", "and be quick"]
        assert len(s.adapter.requests) == 2
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.7")
async def test_a_steer_while_the_model_answers_makes_one_more_turn() -> None:
    queue = Queue()

    def steer_once(event: AgentEvent) -> None:
        if delta_of(event) == "first ":
            queue.add("one more thing")

    async with scene(Turn(text=["first ", "answer"]), DONE) as s:
        s.on_event = steer_once
        await s.run(get_steering_messages=queue.drain)
        assert s.shown(1) == ["hi", "first answer", "one more thing"]
        assert [text_of(m) for m in s.messages] == ["hi", "first answer", "one more thing", "done"]


@pytest.mark.behaviour("lemon_agent.8")
async def test_a_redirect_stops_the_call_and_asks_again_with_the_correction() -> None:
    queue = Queue()

    def redirect_once(event: AgentEvent) -> None:
        if delta_of(event) == "wrong ":
            queue.add("the other way")
            s.signal.request_redirect()

    async with scene(Turn(text=["wrong ", "way"], gate="never", gate_after=1), DONE) as s:
        s.on_event = redirect_once
        await s.run(get_steering_messages=queue.drain)
        assert s.shown(1) == ["hi", "the other way"]
        history = [text_of(message) for message in s.messages]
        assert history == ["hi", "wrong ", "the other way", "done"]
        redirected = s.messages[1]
        assert isinstance(redirected, AssistantMessage)
        assert (redirected.stop_reason, redirected.error_message) == ("redirected", None)
        assert s.terminal.type == "agent_end"
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.8")
async def test_a_redirect_drops_tool_calls_that_were_never_run() -> None:
    queue = Queue()

    def redirect_once(event: AgentEvent) -> None:
        if not isinstance(event, MessageUpdate) or queue.waiting:
            return
        if event.assistant_event.type == "tool_call_start":
            queue.add("no tools please")
            s.signal.request_redirect()

    turn = Turn(tool_calls=[FakeToolCall("work", {"a": 1}, pieces=3)], gate="never", gate_after=1)
    async with scene(turn, DONE) as s:
        s.on_event = redirect_once
        await s.run(tools=[make_tool("work")], get_steering_messages=queue.drain)
        assert s.results == []
        assert s.shown(1) == ["hi", "no tools please"]
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.8")
async def test_a_redirect_during_tools_cancels_neither_them_nor_the_next_call() -> None:
    queue = Queue()

    async def work(_: ToolCallContext) -> AgentToolResult:
        queue.add("then this")
        s.signal.request_redirect()
        await anyio.lowlevel.checkpoint()
        return AgentToolResult.of_text("worked")

    async with scene(calls("work"), DONE) as s:
        await s.run(tools=[make_tool("work", work)], get_steering_messages=queue.drain)
        assert s.shown(1) == ["hi", "", "worked", "then this"]
        assert [text_of(m) for m in s.messages][-1] == "done"
        assert len(s.adapter.requests) == 2
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.8")
async def test_a_redirect_between_the_drain_and_the_call_cancels_that_call() -> None:
    queue = Queue()

    def redirect_before_the_call(event: AgentEvent) -> None:
        if s.states[-1:] == ["await_model"] and len(s.states) == 2 and not s.adapter.requests:
            queue.add("wait, this instead")
            s.signal.request_redirect()
            s.on_event = None

    async with scene(DONE) as s:
        s.on_event = redirect_before_the_call
        await s.run(get_steering_messages=queue.drain)
        assert len(s.adapter.requests) == 1
        assert s.shown(0) == ["hi", "wait, this instead"]
        assert s.terminal.type == "agent_end"
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.8")
async def test_a_redirect_that_just_missed_the_drain_is_not_forgotten() -> None:
    queue = Queue()

    def drain_and_miss_one() -> Sequence[QueuedMessage]:
        taken = queue.drain()
        if not s.adapter.requests and not taken:
            queue.add("a moment too late")
            s.signal.request_redirect()
        return taken

    async with scene(DONE) as s:
        await s.run(get_steering_messages=drain_and_miss_one)
        assert s.shown(0) == ["hi", "a moment too late"]
        assert len(s.adapter.requests) == 1
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.8")
async def test_abort_beats_redirect() -> None:
    queue = Queue()

    def both(event: AgentEvent) -> None:
        if delta_of(event) == "wrong ":
            queue.add("too late")
            s.signal.request_redirect()
            s.signal.abort()

    async with scene(Turn(text=["wrong ", "way"], gate="never", gate_after=1)) as s:
        s.on_event = both
        await s.run(get_steering_messages=queue.drain)
        assert isinstance(s.terminal, RunCanceled)
        assert s.terminal.reason == "assistant_aborted"
        answer = s.messages[-1]
        assert isinstance(answer, AssistantMessage)
        assert answer.stop_reason == "aborted"
        assert [text_of(queued.message) for queued in queue.waiting] == ["too late"]


async def test_a_redirect_that_comes_after_the_last_word_is_one_more_turn() -> None:
    queue = Queue()

    def redirect_late(event: AgentEvent) -> None:
        if event.type == "turn_end" and len(s.adapter.requests) == 1:
            queue.add("and then")
            s.signal.request_redirect()

    async with scene(Turn(text="first"), DONE) as s:
        s.on_event = redirect_late
        await s.run(get_steering_messages=queue.drain)
        assert s.shown(1) == ["hi", "first", "and then"]
        assert len(s.adapter.requests) == 2


@pytest.mark.behaviour("lemon_agent.10")
async def test_a_queued_system_prompt_counts_from_the_call_that_consumes_it() -> None:
    queue = Queue()

    async def work(_: ToolCallContext) -> AgentToolResult:
        queue.add("a", "be long")
        queue.add("b", "be loud")
        queue.add("c", "")
        return AgentToolResult.of_text("worked")

    async with scene(calls("work"), calls("other"), DONE) as s:
        tools = [make_tool("work", work), make_tool("other")]
        await s.run(tools=tools, get_steering_messages=queue.drain)
        prompts = [request.context.system_prompt for request in s.adapter.requests]
        assert prompts == ["be brief", "be loud", "be loud"]


async def test_follow_ups_are_asked_for_only_when_nothing_else_is_pending() -> None:
    queue = Queue()
    queue.add("afterwards")
    async with scene(calls("work"), Turn(text="first"), Turn(text="second")) as s:
        await s.run(tools=[make_tool("work")], get_follow_up_messages=queue.drain_late)
        assert [text_of(m) for m in s.messages][-3:] == ["first", "afterwards", "second"]


# -- abort -----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.6")
async def test_an_abort_before_the_call_does_not_contact_the_model() -> None:
    async with scene(DONE) as s:
        s.signal.abort()
        await s.run()
        assert s.adapter.requests == []
        assert isinstance(s.terminal, RunCanceled)
        assert s.states == ["initializing", "await_model", "aborted"]
        await _next_prompt_works(s)


@pytest.mark.behaviour("lemon_agent.6")
async def test_an_abort_in_mid_stream_keeps_the_partial_text() -> None:
    def abort_at_the_first_word(event: AgentEvent) -> None:
        if delta_of(event):
            s.signal.abort()

    async with scene(Turn(text=["half ", "way"], gate="never", gate_after=1), DONE) as s:
        s.on_event = abort_at_the_first_word
        await s.run()
        assert [text_of(message) for message in s.messages] == ["hi", "half "]
        assert isinstance(s.terminal, RunCanceled)
        s.assert_sound()
        await _next_prompt_works(s)


@pytest.mark.behaviour("lemon_agent.6")
async def test_an_abort_does_not_wait_for_a_silent_provider() -> None:
    async with scene(Turn(text="never", gate="silent"), DONE) as s:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.run)
            with anyio.fail_after(5):
                await s.adapter.gate("silent").reached.wait()
            s.signal.abort()
            # No time passes: the run is over after a few rounds of the loop.
            await steps()
            assert isinstance(s.terminal, RunCanceled)
        s.assert_sound()
        await _next_prompt_works(s)


@pytest.mark.behaviour("lemon_agent.6")
async def test_after_an_abort_during_tools_the_next_prompt_works() -> None:
    async def work(_: ToolCallContext) -> AgentToolResult:
        s.signal.abort()
        await anyio.sleep_forever()
        raise AssertionError

    async with scene(calls("work", "work"), DONE) as s:
        await s.run(tools=[make_tool("work", work)])
        assert [text_of(m) for m in s.results] == ["interrupted, outcome unknown", "not started"]
        s.assert_sound()
        await _next_prompt_works(s)


async def test_an_abort_at_the_very_end_delivers_nothing_more() -> None:
    steering, late = Queue(), Queue()

    def abort_at_the_end(event: AgentEvent) -> None:
        if event.type == "turn_end":
            steering.add("steered")
            late.add("followed")
            s.signal.abort()

    async with scene(DONE) as s:
        s.on_event = abort_at_the_end
        await s.run(get_steering_messages=steering.drain, get_follow_up_messages=late.drain_late)
        assert s.terminal.type == "agent_end"
        assert len(steering.waiting) == len(late.waiting) == 1


async def test_a_crash_of_the_loop_in_the_middle_of_tools_stops_them() -> None:
    held = HeldTool("held")

    def crash(event: AgentEvent) -> None:
        if isinstance(event, ToolExecutionEnd) and event.name == "missing":
            s.on_event = None
            raise ZeroDivisionError("boom")

    async with scene(calls("held", "wait", "missing")) as s:

        async def wait(_: ToolCallContext) -> AgentToolResult:
            await held.inside.wait()
            return AgentToolResult.of_text("waited")

        s.on_event = crash
        tools = [held.tool(), make_tool("wait", wait)]
        await s.run(tools=tools, max_tool_concurrency=2)
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "loop_crashed"
        assert held.cancelled
        s.assert_sound()


async def _next_prompt_works(s: Scene) -> None:
    history = s.messages
    s.events.clear()
    s.signal, s.on_event = AbortSignal(), None
    await s.run(user("again"), messages=history)
    assert s.terminal.type == "agent_end"
    assert text_of(s.messages[-1]) == "done"


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.12")
async def test_the_default_budget_lets_25_tool_turns_run() -> None:
    async with scene(default=calls("work")) as s:
        await s.run(tools=[make_tool("work")])
        assert len(s.results) == len(s.adapter.requests) == 25
        exhausted = LoopBudgetExhausted("max_tool_turns_exhausted", 25, 25)
        index = s.events.index(exhausted)
        assert s.kinds[index:] == [
            "loop_budget_exhausted",
            "message_start",
            "message_end",
            "agent_end",
        ]
        notice = s.messages[-1]
        assert isinstance(notice, AssistantMessage)
        assert (notice.stop_reason, notice.error_message) == ("error", exhausted.reason)
        assert "25 tool turns" in text_of(notice)
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.12")
async def test_the_count_of_tool_turns_restarts_for_a_follow_up() -> None:
    queue = Queue()
    queue.add("more")
    turns = [calls("work"), Turn(text="first"), calls("work"), Turn(text="second")]
    async with scene(*turns) as s:
        await s.run(
            tools=[make_tool("work")],
            max_tool_turns=2,
            get_follow_up_messages=queue.drain_late,
        )
        assert text_of(s.messages[-1]) == "second"
        assert "loop_budget_exhausted" not in s.kinds


async def test_follow_ups_stay_queued_when_the_budget_is_spent() -> None:
    queue = Queue()
    queue.add("more")
    async with scene(calls("work")) as s:
        await s.run(
            tools=[make_tool("work")],
            max_tool_turns=1,
            get_follow_up_messages=queue.drain_late,
        )
        assert len(queue.waiting) == 1


async def test_without_a_limit_tool_turns_go_on() -> None:
    turns = [calls("work")] * 40
    async with scene(*turns, DONE) as s:
        await s.run(tools=[make_tool("work")], max_tool_turns=None)
        assert len(s.results) == 40
        assert text_of(s.messages[-1]) == "done"


USAGE = {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
BUDGETS = [
    (Budget(max_tokens=20), "max_tokens_exhausted"),
    (Budget(max_cost_usd=0.000015), "max_cost_usd_exhausted"),
    (Budget(max_tool_calls=2), "max_tool_calls_exhausted"),
]


@pytest.mark.behaviour("lemon_agent.29")
@pytest.mark.parametrize(("budget", "reason"), BUDGETS)
@pytest.mark.parametrize("late", [False, True], ids=["prompt", "follow_up"])
async def test_a_spent_budget_stops_before_the_next_call(
    budget: Budget, reason: str, late: bool
) -> None:
    queue = Queue()
    work = Turn(tool_calls=[FakeToolCall("work")], usage=USAGE)
    turns = [work, work, DONE]
    if late:
        queue.add("more")
        turns = [work, Turn(text="first", usage=USAGE), work, DONE]
        if reason != "max_tool_calls_exhausted":
            turns = [work, Turn(text="first", usage=USAGE), DONE]
    async with scene(*turns) as s:
        price = {"cost": ModelCost(input=1.0, output=1.0)}
        await s.run(
            tools=[make_tool("work")],
            model=s.config().model.model_copy(update=price),
            budget=budget,
            get_follow_up_messages=queue.drain_late,
        )
        (spent,) = [event for event in s.events if isinstance(event, LoopBudgetExhausted)]
        assert spent.reason == reason
        assert spent.used >= spent.limit
        assert len(s.adapter.requests) == len(turns) - 1
        assert s.kinds[-4:] == [
            "loop_budget_exhausted",
            "message_start",
            "message_end",
            "agent_end",
        ]
        assert s.states[-1] == "finalizing"
        s.assert_sound()


async def test_usage_of_a_redirected_call_counts_for_the_budget() -> None:
    queue = Queue()

    def redirect_once(event: AgentEvent) -> None:
        if delta_of(event) == "wrong ":
            queue.add("again")
            s.signal.request_redirect()

    async def batches(partial: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
        partial.usage = Usage(total_tokens=10)
        partial.add_text("wrong ")
        yield partial.drain()
        await anyio.sleep_forever()

    def stream(model: Model, *_: object) -> EventStream:
        return EventStream(batches, PartialMessage(model, 0), timeout_ms=5_000)

    async with scene() as s:
        s.on_event = redirect_once
        await s.run(
            stream_fn=stream, get_steering_messages=queue.drain, budget=Budget(max_tokens=10)
        )
        assert [text_of(message) for message in s.messages[:-1]] == ["hi", "wrong ", "again"]
        assert "loop_budget_exhausted" in s.kinds


# -- loop detection --------------------------------------------------------------------------


async def _always_fail(_: ToolCallContext) -> AgentToolResult:
    raise ToolError("no such file")


@pytest.mark.behaviour("lemon_agent.30")
async def test_the_third_equal_failure_is_warned_and_the_fifth_ends_the_run() -> None:
    async with scene(*[calls("read")] * 5, DONE) as s:
        await s.run(tools=[make_tool("read", _always_fail)])
        texts = [text_of(result) for result in s.results]
        assert len(texts) == 5
        assert [text == "no such file" for text in texts] == [True, True, False, True, True]
        assert "failed 3 times in a row" in texts[2]
        assert "failed 3 times in a row" in s.shown(3)[-1]
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "loop_detected"
        assert "read failed 5 times" in s.terminal.detail
        assert len(s.adapter.requests) == 5
        s.assert_sound()
        await _next_prompt_works(s)


@pytest.mark.behaviour("lemon_agent.30")
async def test_another_call_in_between_resets_the_count() -> None:
    turns = [calls("read")] * 4 + [calls("ls")] + [calls("read")] * 4 + [DONE]
    async with scene(*turns) as s:
        await s.run(tools=[make_tool("read", _always_fail), make_tool("ls")])
        assert s.terminal.type == "agent_end"


async def test_equal_failures_inside_one_batch_count_and_all_results_are_stored() -> None:
    async with scene(calls(*["missing"] * 6)) as s:
        await s.run()
        assert len(s.results) == 6
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "loop_detected"
        s.assert_sound()


async def test_a_follow_up_starts_with_a_clean_count() -> None:
    queue = Queue()
    queue.add("again")
    turns = [*[calls("read")] * 4, Turn(text="sorry"), *[calls("read")] * 4, DONE]
    async with scene(*turns) as s:
        await s.run(
            tools=[make_tool("read", _always_fail)], get_follow_up_messages=queue.drain_late
        )
        assert s.terminal.type == "agent_end"


async def test_interrupted_calls_do_not_count_as_failures() -> None:
    def abort(event: AgentEvent) -> None:
        if isinstance(event, ToolExecutionStart):
            s.signal.abort()

    async with scene(calls(*["work"] * 6)) as s:
        s.on_event = abort
        await s.run(tools=[make_tool("work")])
        assert isinstance(s.terminal, RunCanceled)
        assert {text_of(result) for result in s.results[1:]} == {"not started"}


async def test_nothing_is_emitted_when_the_arguments_of_run_loop_are_wrong() -> None:
    seen: list[Any] = []
    async with scene() as s:
        tool = make_tool("work")
        with pytest.raises(ValueError, match="share a name"):
            await run_loop(
                [user()], AgentContext(tools=[tool, tool]), s.config(), s.signal, seen.append
            )
    assert seen == []
