"""From agent events to sink messages, without a session (specification coding_agent 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coding_agent.tool_titles import shortened, title_of
from coding_agent.translator import RunTranslator, result_meta
from lemon_agent import (
    AgentEnd,
    AgentEvent,
    AgentMessage,
    AgentStart,
    AgentToolResult,
    LoopBudgetExhausted,
    MessageEnd,
    MessageUpdate,
    ModelSwitched,
    RunCanceled,
    RunFailed,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnStart,
)
from lemon_ai import (
    AssistantMessage,
    Cost,
    ErrorInfo,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    Usage,
    UserMessage,
)
from lemon_core.errors import is_context_overflow
from lemon_core.events import Action
from lemon_core.resume import ResumeToken
from lemon_gateway.requests import EngineAction, EngineCompleted, EngineDelta, SinkMessage

REF = "run_1"
TOKEN = ResumeToken(engine="lemon", value="s1")
PARTIAL: Any = None  # the translator reads deltas and never the message so far


def text(delta: str) -> MessageUpdate:
    return MessageUpdate(TextDelta(PARTIAL, 0, delta))


def thought(delta: str, index: int = 0) -> MessageUpdate:
    return MessageUpdate(ThinkingDelta(PARTIAL, index, delta))


def think_start(index: int = 0) -> MessageUpdate:
    return MessageUpdate(ThinkingStart(PARTIAL, index))


def think_end(index: int = 0) -> MessageUpdate:
    return MessageUpdate(ThinkingEnd(PARTIAL, index, ""))


def answer(*texts: str, **fields: Any) -> AssistantMessage:
    return AssistantMessage(content=[TextContent(text=t) for t in texts], **fields)


def completed(events: Sequence[AgentEvent], failure: Any = None) -> EngineCompleted:
    translator = RunTranslator(REF)
    translator.translate(events)
    message = translator.complete(TOKEN, failure)
    assert message is not None
    return message


def actions(messages: Sequence[SinkMessage]) -> list[EngineAction]:
    assert all(isinstance(message, EngineAction) for message in messages)
    return [message for message in messages if isinstance(message, EngineAction)]


# -- text and the end ------------------------------------------------------------------------


def test_visible_text_becomes_deltas_and_nothing_else_does() -> None:
    events: list[AgentEvent] = [AgentStart(), TurnStart(), text("he"), text(""), text("llo")]
    messages = RunTranslator(REF).translate(events)
    assert messages == [EngineDelta(REF, "he"), EngineDelta(REF, "llo")]


@pytest.mark.parametrize(
    ("first", "second"), [("I look.", "\n\nFound"), ("I look.\n", "\nFound"), ("\n\n", "Found")]
)
def test_a_further_answer_begins_a_paragraph_of_its_own(first: str, second: str) -> None:
    translator = RunTranslator(REF)
    events: list[AgentEvent] = [text(first), MessageEnd(answer(first)), text("Found"), text(" it.")]
    deltas = [m.text for m in translator.translate(events) if isinstance(m, EngineDelta)]
    assert deltas == [first, second, " it."]


def test_the_answer_is_the_last_message_and_there_is_one_completion() -> None:
    translator = RunTranslator(REF)
    translator.translate(
        [
            text("first"),
            MessageEnd(answer("first")),
            MessageEnd(UserMessage(content="more")),
            text("one"),
            MessageEnd(answer("one", "two")),
            AgentEnd(()),
        ]
    )
    assert translator.has_ended
    assert translator.complete(TOKEN) == EngineCompleted(
        REF, ok=True, answer="one\ntwo", resume=TOKEN
    )
    assert translator.complete(TOKEN) is None


def test_without_text_in_the_last_message_the_streamed_text_answers() -> None:
    end = completed([text("so far"), MessageEnd(answer()), AgentEnd(())])
    assert (end.ok, end.answer) == (True, "so far")


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (RunCanceled("assistant_aborted"), "Cancelled by user"),
        (RunCanceled("task_cancelled"), "Cancelled: task_cancelled"),
        (
            RunFailed("loop_detected", "tool x failed"),
            {"code": "loop_detected", "message": "tool x failed"},
        ),
        (
            RunFailed("assistant_error", "no_response"),
            {"code": "assistant_error", "message": "no_response"},
        ),
    ],
)
def test_a_run_that_failed_answers_with_what_was_streamed(last: AgentEvent, error: object) -> None:
    end = completed([text("so "), text("far"), MessageEnd(answer("so far, more")), last])
    assert (end.ok, end.answer, end.error, end.resume) == (False, "so far", error, TOKEN)


def test_a_failure_outside_the_agent_counts() -> None:
    end = completed([text("a")], "Session terminated: broken")
    assert (end.ok, end.answer, end.error) == (False, "a", "Session terminated: broken")
    assert completed([]).error == "Session terminated: the agent ended without a word"


def test_a_provider_error_is_told_in_the_formatters_words() -> None:
    info = ErrorInfo(category="auth", message="the key was refused (HTTP 401)", status=401)
    message = answer(stop_reason="error", error_message="x", error=info)
    end = completed([MessageEnd(message), RunFailed("assistant_error", "x")])
    assert end.error == {
        "code": "assistant_error",
        "message": "the key was refused (HTTP 401)",
        "detail": {"category": "auth", "status": 401, "code": None},
    }


def test_a_full_context_is_recognised_by_the_gateway() -> None:
    info = ErrorInfo(category="context_length", message="too much")
    message = answer(stop_reason="error", error=info)
    end = completed([MessageEnd(message), RunFailed("assistant_error", "x")])
    assert is_context_overflow(end.error)


@pytest.mark.behaviour("coding_agent.27")
def test_a_spent_limit_is_told() -> None:
    spent = LoopBudgetExhausted("max_tokens_exhausted", 10, 12)
    end = completed([text("a"), spent, MessageEnd(answer("I stopped here")), AgentEnd(())])
    assert end.ok is False
    assert end.error == {"code": "max_tokens_exhausted", "message": "I stopped here"}


def test_usage_is_summed_and_the_context_is_of_the_last_call() -> None:
    first = Usage(input=10, output=2, cache_read=1, cache_write=4, total_tokens=17)
    second = Usage(input=20, output=3, cache_read=5, total_tokens=28, cost=Cost(total=0.5))
    events: list[AgentEvent] = [
        MessageEnd(answer("a", usage=first)),
        MessageEnd(answer("b", usage=second)),
        MessageEnd(answer("c")),
        RunCanceled("assistant_aborted"),
    ]
    assert completed(events).usage == {
        "input": 30,
        "output": 5,
        "cache_read": 6,
        "cache_write": 4,
        "total_tokens": 45,
        "cost_usd": 0.5,
        "context_tokens": 25,
    }
    assert completed([AgentEnd(())]).usage is None


def test_messages_of_other_classes_are_passed_over() -> None:
    class Note:
        role = "note"

    note: AgentMessage = Note()
    assert RunTranslator(REF).translate([MessageEnd(note)]) == []


# -- tools -----------------------------------------------------------------------------------


def test_a_tool_call_is_one_action_that_grows() -> None:
    args = {"command": "make\nmore"}
    partial = AgentToolResult.of_text("x" * 600)
    result = AgentToolResult.of_text("y" * 600, details={"exit_code": 0, "secret": "s"})
    messages = RunTranslator(REF).translate(
        [
            ToolExecutionStart("c1", "bash", args),
            ToolExecutionUpdate("c1", "bash", args, partial),
            ToolExecutionEnd("c1", "bash", result, False),
        ]
    )
    detail: dict[str, object] = {"name": "bash", "args": args}
    action = Action(id="tool_c1", kind="command", title="`make`", detail=detail)
    assert messages == [
        EngineAction(REF, action, "started"),
        EngineAction(
            REF,
            action.model_copy(update={"detail": {**detail, "partial_result": "x" * 500}}),
            "updated",
        ),
        EngineAction(
            REF,
            action.model_copy(
                update={
                    "detail": {
                        **detail,
                        "result": "y" * 499 + "…",
                        "result_meta": {"exit_code": 0},
                    }
                }
            ),
            "completed",
            ok=True,
        ),
    ]


def test_an_update_for_an_unknown_call_is_dropped_and_a_completion_is_not() -> None:
    partial = AgentToolResult.of_text("x")
    messages = RunTranslator(REF).translate(
        [
            ToolExecutionUpdate("c9", "ls", {}, partial),
            ToolExecutionEnd("c9", "ls", partial, False),
        ]
    )
    (only,) = actions(messages)
    assert (only.phase, only.action.id, only.action.title) == ("completed", "tool_c9", "ls")


@pytest.mark.parametrize(
    ("name", "code", "is_error", "ok"),
    [("bash", 0, False, True), ("bash", 3, False, False), ("read", None, True, False)],
)
def test_ok_tells_whether_it_went_well(
    name: str, code: int | None, is_error: bool, ok: bool
) -> None:
    result = AgentToolResult.of_text("x", details={"exit_code": code}, is_error=is_error)
    (only,) = actions(RunTranslator(REF).translate([ToolExecutionEnd("c", name, result, is_error)]))
    assert only.ok is ok


def test_only_safe_details_are_told() -> None:
    given = {"error_type": "x", "timeout_ms": 5, "reason": None, "content": "file", "errors": ["e"]}
    assert result_meta("read", given) == {"error_type": "x", "timeout_ms": 5, "errors": ["e"]}
    assert result_meta("read", "text") == result_meta("read", None) == {}
    assert result_meta("bash", {"exit_code": 2}) == {
        "exit_code": 2,
        "error_type": "command_exit",
        "message": "Command exited with code 2",
    }


@pytest.mark.parametrize(
    ("name", "args", "title"),
    [
        ("bash", {"command": "x" * 80}, f"`{'x' * 59}…`"),
        ("bash", {"command": "  "}, "bash"),
        ("bash", {"command": 5}, "bash"),
        ("read", {"path": "/a/b/c.txt"}, "read: b/c.txt"),
        ("edit", {"path": "c.txt"}, "edit: c.txt"),
        ("ls", {"path": "/"}, "ls: /"),
        ("ls", {}, "ls"),
        ("grep", {"pattern": "y" * 40, "path": "src"}, f"grep: {'y' * 29}…"),
        ("other", {"x": 1}, "other"),
    ],
)
def test_titles_are_short(name: str, args: dict[str, object], title: str) -> None:
    assert title_of(name, args) == title


def test_kinds_are_those_of_the_gateway() -> None:
    empty = AgentToolResult()
    ends = [ToolExecutionEnd(n, n, empty, False) for n in ("bash", "write", "edit", "read", "grep")]
    kinds = [a.action.kind for a in actions(RunTranslator(REF).translate(ends))]
    assert kinds == ["command", "file_change", "file_change", "tool", "tool"]


def test_long_arguments_are_cut_in_events() -> None:
    assert shortened({"a": ["x" * 3_000, 5]}) == {
        "a": [f"{'x' * 2_000}… [3000 characters]", 5],
    }


# -- reasoning -------------------------------------------------------------------------------


def shown(action: EngineAction) -> str:
    assert action.action.detail is not None
    reasoning = action.action.detail["reasoning"]
    assert isinstance(reasoning, dict)
    assert reasoning["source"] == "lemon_reasoning"
    return str(reasoning["text"])


def test_thinking_becomes_reasoning_actions_and_never_a_delta() -> None:
    messages = actions(
        RunTranslator(REF).translate([think_start(), thought("first\nplan"), think_end()])
    )
    assert [(m.phase, m.ok, shown(m), m.action.title) for m in messages] == [
        ("started", None, "", "reasoning"),
        ("completed", True, "first\nplan", "first plan"),
    ]
    assert {m.action.id for m in messages} == {"lemon.reasoning.0.1"}
    assert {m.action.kind for m in messages} == {"reasoning"}


def test_much_thinking_is_shown_every_700_bytes_and_by_its_end() -> None:
    events = [think_start(), thought("ä" * 349), thought("b"), thought("c"), think_end()]
    messages = actions(RunTranslator(REF).translate(events))
    assert [m.phase for m in messages] == ["started", "updated", "completed"]
    assert shown(messages[1]) == "ä" * 349 + "bc"
    events = [think_start(), thought("a" * 400 + "b" * 400), thought("c" * 700), think_end()]
    messages = actions(RunTranslator(REF).translate(events))
    assert [m.phase for m in messages] == ["started", "updated", "updated", "completed"]
    assert shown(messages[1]) == "..." + "a" * 100 + "b" * 400
    assert shown(messages[2]) == "..." + "c" * 500
    assert shown(messages[3]) == "..." + "c" * 497
    assert messages[3].action.title == "a" * 100


def test_each_block_has_its_own_id_and_a_broken_one_is_closed() -> None:
    broken = answer(stop_reason="aborted")
    events: list[AgentEvent] = [
        think_start(0),
        think_end(0),
        think_start(1),
        thought("half", 1),
        MessageEnd(broken.model_copy(update={"content": [ThinkingContent(thinking="half")]})),
        think_start(0),
        thought("x", 5),
        think_end(5),
    ]
    messages = actions(RunTranslator(REF).translate(events))
    assert [(m.action.id, m.phase) for m in messages] == [
        ("lemon.reasoning.0.1", "started"),
        ("lemon.reasoning.0.1", "completed"),
        ("lemon.reasoning.1.2", "started"),
        ("lemon.reasoning.1.2", "completed"),
        ("lemon.reasoning.0.3", "started"),
    ]
    assert shown(messages[3]) == "half"


def test_a_model_that_stood_in_is_named() -> None:
    events = [ModelSwitched("openai:gpt", "groq:llama")]
    title = "openai:gpt did not answer: this is from groq:llama"
    note = Action(id="lemon.model_notice", kind="note", title=title)
    assert RunTranslator(REF).translate(events) == [EngineAction(REF, note, "completed", ok=True)]
