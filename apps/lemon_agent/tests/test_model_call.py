"""One model call, seen through a run of the loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from lemon_agent import (
    AbortSignal,
    AgentEvent,
    AgentMessage,
    MessageUpdate,
    RunCanceled,
    RunFailed,
)
from lemon_agent.tests.harness import HOOKS, calls, make_tool, scene, text_of, user
from lemon_ai import (
    AssistantMessage,
    Context,
    Event,
    EventStream,
    Model,
    PartialMessage,
    StreamDone,
    StreamError,
    StreamOptions,
    ToolCall,
    ToolResultMessage,
)
from lemon_ai.testing import HttpError, Turn

pytestmark = pytest.mark.anyio


def last_answer(messages: Sequence[AgentMessage]) -> AssistantMessage:
    message = messages[-1]
    assert isinstance(message, AssistantMessage)
    return message


async def test_the_key_is_asked_for_before_every_call_and_wins_over_the_options() -> None:
    asked: list[str] = []

    async def get_api_key(provider: str) -> str | None:
        asked.append(provider)
        return "fresh" if len(asked) == 1 else None

    async with scene(calls("work"), Turn(text="done")) as s:
        options = StreamOptions(api_key="fixed", session_id="s1")
        await s.run(tools=[make_tool("work")], get_api_key=get_api_key, stream_options=options)
        keys = [request.options.api_key for request in s.adapter.requests]
        assert [key and key.get_secret_value() for key in keys] == ["fresh", "fixed"]
        assert {request.options.session_id for request in s.adapter.requests} == {"s1"}
    assert asked == ["scripted", "scripted"]


async def test_transform_context_changes_what_is_shown_and_not_the_history() -> None:
    async def last_only(messages: Sequence[AgentMessage], _: AbortSignal) -> list[AgentMessage]:
        shown = list(messages[-1:])
        assert isinstance(messages, list)
        messages.clear()
        return shown

    async with scene(Turn(text="ok")) as s:
        await s.run(user("new"), messages=[user("old")], transform_context=last_only)
        assert s.shown(0) == ["new"]
        assert s.terminal.type == "agent_end"


async def test_messages_of_other_roles_are_not_shown_unless_converted() -> None:
    class Note:
        role = "note"

    def with_notes(messages: Sequence[AgentMessage]) -> Any:
        return [user("a note") if isinstance(m, Note) else m for m in messages]

    async with scene(Turn(text="ok"), Turn(text="ok")) as s:
        await s.run(messages=[Note()])
        assert s.shown(0) == ["hi"]
        await s.run(messages=[Note()], convert_to_llm=with_notes)
        assert s.shown(1) == ["a note", "hi"]


async def test_an_answer_without_content_is_left_out_of_what_is_shown() -> None:
    async with scene(Turn(text="ok")) as s:
        await s.run(messages=[user("a"), AssistantMessage(stop_reason="redirected")])
        assert s.shown(0) == ["a", "hi"]


@pytest.mark.behaviour("lemon_agent.13")
@pytest.mark.parametrize("turn", [Turn(text=""), Turn(text="  \n"), Turn(thinking="hm")])
async def test_an_empty_answer_is_an_error(turn: Turn) -> None:
    async with scene(turn) as s:
        await s.run()
        assert isinstance(s.terminal, RunFailed)
        assert (s.terminal.reason, s.terminal.detail) == (
            "assistant_error",
            "empty_assistant_response",
        )
        answer = last_answer(s.messages)
        assert answer.stop_reason == "error"
        assert "empty answer" in text_of(answer)
        s.assert_sound()


@pytest.mark.behaviour("lemon_agent.13")
async def test_a_final_message_without_content_takes_what_was_streamed() -> None:
    async with scene(Turn(text="streamed text")) as s:

        def forgetful(model: Model, context: Context, options: StreamOptions) -> EventStream:
            return _Forgetful(s.client.stream(model, context, options))

        await s.run(stream_fn=forgetful)
        assert text_of(s.messages[-1]) == "streamed text"
        assert s.terminal.type == "agent_end"


class _Forgetful(EventStream):
    """A stream whose final message has lost its content."""

    def __init__(self, inner: EventStream) -> None:
        async def batches(_: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
            async with inner:
                while batch := await inner.next_batch():
                    yield [_emptied(event) for event in batch if event.type != "start"]

        super().__init__(batches, inner.partial, timeout_ms=5_000)


def _emptied(event: Event) -> Event:
    if isinstance(event, StreamDone):
        return StreamDone(event.reason, event.message.model_copy(update={"content": []}))
    return event


async def test_a_failing_model_ends_the_run_with_its_error_and_keeps_the_partial_text() -> None:
    async with scene(Turn(text="half an ", disconnect=True)) as s:
        await s.run()
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "assistant_error"
        answer = last_answer(s.messages)
        assert (text_of(answer), answer.stop_reason) == ("half an ", "error")
        assert answer.error is not None
        assert s.terminal.detail == answer.error_message
        assert s.kinds[-4:] == [
            "loop_state_transition",
            "turn_end",
            "loop_state_transition",
            "error",
        ]
        s.assert_sound()


async def test_the_error_of_a_refused_call_reaches_the_user() -> None:
    refused = HttpError(401, {"error": {"message": "bad key"}})
    async with scene(Turn(http_error=refused)) as s:
        await s.run()
        assert isinstance(s.terminal, RunFailed)
        assert "bad key" in s.terminal.detail
        s.assert_sound()


async def test_calls_of_a_broken_answer_are_dropped_and_never_run() -> None:
    ran: list[str] = []
    turn = Turn(tool_calls=calls("work").tool_calls, stream_error={"message": "overloaded"})

    async def work(_: object) -> Any:
        ran.append("work")

    async with scene(turn) as s:
        await s.run(tools=[make_tool("work", work)])
        assert s.terminal.type == "error"
        s.assert_sound()
    assert ran == []


@pytest.mark.behaviour("lemon_agent.27")
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_crash_in_a_hook_ends_the_run_with_an_error(hook: str) -> None:
    def sync_crash(*_: object) -> Any:
        raise ZeroDivisionError("boom")

    async def async_crash(*_: object) -> Any:
        raise ZeroDivisionError("boom")

    crash = sync_crash if hook in ("convert_to_llm", "stream_fn") else async_crash
    hooks: dict[str, Any] = {hook: crash}
    async with scene() as s:
        await s.run(**hooks)
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.detail == "ZeroDivisionError: boom"
        assert last_answer(s.messages).stop_reason == "error"
        assert s.adapter.requests == []
        s.assert_sound()


RESULT = ToolResultMessage(tool_call_id="a", tool_name="t")
CALL = AssistantMessage(content=[ToolCall(id="a", name="t")])
TWICE = AssistantMessage(content=[ToolCall(id="a", name="t"), ToolCall(id="a", name="t")])
NAMELESS = AssistantMessage(content=[ToolCall(id="", name="t")])


@pytest.mark.behaviour("lemon_agent.14")
@pytest.mark.parametrize(
    ("history", "violation"),
    [
        ([RESULT], "orphan_tool_result"),
        ([NAMELESS, RESULT.model_copy(update={"tool_call_id": ""})], "invalid_tool_call_id"),
        ([TWICE, RESULT], "duplicate_tool_call_id"),
        ([CALL], "missing_tool_result"),
        (
            [CALL, RESULT, RESULT.model_copy(update={"tool_call_id": "x"})],
            "unexpected_tool_result",
        ),
        ([CALL, RESULT, RESULT], "duplicate_tool_result"),
    ],
)
async def test_a_broken_history_stops_the_run_before_any_call(
    history: list[AgentMessage], violation: str
) -> None:
    async with scene(Turn(text="never asked")) as s:
        await s.run(messages=history)
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "invalid_tool_transcript"
        assert violation in s.terminal.detail
        assert s.adapter.requests == []


async def test_updates_carry_the_events_of_the_stream_and_the_message_on_demand() -> None:
    async with scene(Turn(text=["one ", "two"])) as s:
        await s.run()
        updates = [event for event in s.events if isinstance(event, MessageUpdate)]
        kinds = [event.assistant_event.type for event in updates]
        assert kinds == ["text_start", "text_delta", "text_delta", "text_end"]
        assert text_of(updates[-1].message) == "one two"


async def test_a_stream_that_times_out_is_an_error() -> None:
    async with scene(Turn(text=["one ", "two"], gate="held", gate_after=1)) as s:
        await s.run(stream_options=StreamOptions(stream_timeout_ms=20))
        assert isinstance(s.terminal, RunFailed)
        assert last_answer(s.messages).stop_reason == "error"
        assert text_of(s.messages[-1]) == "one "


def _scripted_stream(
    batches: Callable[[PartialMessage], AsyncGenerator[Sequence[Event], None]],
    on_close: Callable[[], Awaitable[None]] | None = None,
) -> Callable[[Model, Context, StreamOptions], EventStream]:
    def stream(model: Model, _context: Context, _options: StreamOptions) -> EventStream:
        events = EventStream(batches, PartialMessage(model, 0), timeout_ms=5_000)
        if on_close is not None:
            events.on_close(on_close)
        return events

    return stream


async def test_whole_calls_of_an_answer_that_fails_later_are_dropped_too() -> None:
    async def batches(partial: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
        partial.add_arguments(partial.start_tool_call("c1", "work"), "{}")
        partial.close_tool_calls()
        yield [*partial.drain(), StreamError("error", partial.broken("error"))]

    async with scene() as s:
        await s.run(tools=[make_tool("work")], stream_fn=_scripted_stream(batches))
        assert isinstance(s.terminal, RunFailed)
        assert last_answer(s.messages).content == []
        s.assert_sound()


async def test_an_abort_at_the_last_event_of_an_answer_runs_none_of_its_calls() -> None:
    def abort_at_the_end_of_the_call(event: AgentEvent) -> None:
        if isinstance(event, MessageUpdate) and event.assistant_event.type == "tool_call_end":
            s.signal.abort()

    async with scene(calls("work")) as s:
        s.on_event = abort_at_the_end_of_the_call
        await s.run(tools=[make_tool("work")])
        assert isinstance(s.terminal, RunCanceled)
        assert last_answer(s.messages).stop_reason == "aborted"
        assert "tool_execution_start" not in s.kinds
        s.assert_sound()


async def test_an_abort_does_not_wait_for_a_connection_that_is_being_closed() -> None:
    async def batches(partial: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
        partial.add_text("whole")
        partial.close_prose()
        yield [*partial.drain(), StreamDone("stop", partial.complete("stop"))]

    async def close() -> None:
        s.signal.abort()
        await anyio.sleep_forever()

    async with scene() as s:
        await s.run(stream_fn=_scripted_stream(batches, close))
        assert isinstance(s.terminal, RunCanceled)
        assert text_of(s.messages[-1]) == "whole"
        s.assert_sound()


@pytest.mark.parametrize("hook", ["get_api_key", "transform_context"])
async def test_an_abort_does_not_wait_for_a_hook(hook: str) -> None:
    async def stay(*_: object) -> Any:
        s.signal.abort()
        await anyio.sleep_forever()

    hooks: dict[str, Any] = {hook: stay}
    async with scene(Turn(text="never asked")) as s:
        await s.run(**hooks)
        assert isinstance(s.terminal, RunCanceled)
        assert s.adapter.requests == []
        s.assert_sound()


async def test_when_the_task_is_cancelled_what_was_shown_stays_in_the_history() -> None:
    def cancel_at_the_first_word(event: AgentEvent) -> None:
        if isinstance(event, MessageUpdate) and event.assistant_event.type == "text_delta":
            scope.cancel()

    async with scene(Turn(text=["half ", "an answer"], gate="held", gate_after=1)) as s:
        s.on_event = cancel_at_the_first_word
        with anyio.CancelScope() as scope:
            await s.run()
        assert scope.cancelled_caught
        assert isinstance(s.terminal, RunCanceled)
        assert s.terminal.reason == "task_cancelled"
        assert text_of(s.messages[-1]) == "half "
        s.assert_sound()
