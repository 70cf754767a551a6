"""Anthropic's Messages API: building the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import orjson
import pytest

from lemon_ai import (
    AssistantMessage,
    Compat,
    Context,
    ImageContent,
    Message,
    Model,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.adapters.anthropic_request import betas, build_body
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.tests.models import claude
from lemon_ai.tests.support import HELLO, LS, TOOL_CONTEXT, adapter_request
from lemon_ai.types import AssistantContent

PNG = ImageContent(data="aGk=", mime_type="image/png")
MARK = {"type": "ephemeral"}


MODEL = claude()


def body(
    context: Context = HELLO,
    options: StreamOptions | None = None,
    *,
    model: Model = MODEL,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    raw = build_body(adapter_request(model, context, options, env), ToolCache())
    assert raw is not None
    found = orjson.loads(raw)
    assert isinstance(found, dict)
    return found


def messages(*history: Message, model: Model = MODEL) -> list[dict[str, Any]]:
    found = body(Context(messages=history), model=model)["messages"]
    assert isinstance(found, list)
    return found


def answer(*blocks: AssistantContent) -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks), api=MODEL.api, provider=MODEL.provider, model=MODEL.id
    )


def result(call_id: str, *blocks: TextContent | ImageContent, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="ls", content=list(blocks), **fields)


def test_a_plain_question() -> None:
    context = Context(system_prompt="Be short.", messages=HELLO.messages)
    assert body(context, StreamOptions(temperature=0.5)) == {
        "model": "claude",
        "max_tokens": 21_333,
        "stream": True,
        "system": [{"type": "text", "text": "Be short.", "cache_control": MARK}],
        "temperature": 0.5,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Say hello", "cache_control": MARK}],
            }
        ],
    }


def test_the_limit_of_the_answer() -> None:
    assert body(options=StreamOptions(max_tokens=9))["max_tokens"] == 9
    assert body(model=claude(max_tokens=1))["max_tokens"] == 1


def test_a_tool_on_the_vendors_host_and_elsewhere() -> None:
    tools = (Tool("a", "First.", {"properties": {}}), LS)
    context = Context(messages=HELLO.messages, tools=tools)
    assert body(context)["tools"] == [
        {
            "name": "a",
            "description": "First.",
            "input_schema": {"type": "object", "properties": {}},
            "eager_input_streaming": True,
        },
        {
            "name": "ls",
            "description": "List a folder.",
            "input_schema": LS.parameters,
            "eager_input_streaming": True,
            "cache_control": MARK,
        },
    ]
    elsewhere = body(context, model=claude("https://proxy.example"))["tools"]
    assert all("eager_input_streaming" not in tool for tool in elsewhere)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"type": "auto"}),
        ("any", {"type": "any"}),
        ("none", {"type": "none"}),
        ("ls", {"type": "tool", "name": "ls"}),
        (None, None),
    ],
)
def test_tool_choices(choice: str | None, expected: object) -> None:
    options = StreamOptions(tool_choice=choice)
    assert body(TOOL_CONTEXT, options).get("tool_choice") == expected
    assert "tool_choice" not in body(HELLO, options)


@pytest.mark.parametrize("choice", ["any", "ls"])
def test_a_forced_call_and_thinking_do_not_go_together(choice: str) -> None:
    options = StreamOptions(tool_choice=choice, reasoning="low")
    thinking = claude(reasoning=True)
    assert body(TOOL_CONTEXT, options, model=thinking)["tool_choice"] == {"type": "auto"}
    never = claude(compat=Compat(supports_forced_tool_choice=False))
    assert body(TOOL_CONTEXT, options, model=never)["tool_choice"] == {"type": "auto"}
    off = StreamOptions(tool_choice="none", reasoning="low")
    assert body(TOOL_CONTEXT, off, model=thinking)["tool_choice"] == {"type": "none"}


def test_results_stand_in_one_message_with_their_images() -> None:
    sent = messages(
        UserMessage(content="x"),
        answer(TextContent(text="I look."), ToolCall(id="a", name="ls", arguments={"p": 1})),
        result("a", TextContent(text="one"), PNG),
        answer(ToolCall(id="b", name="ls"), ToolCall(id="c", name="ls")),
        result("b", TextContent(text=" ")),
        result("c", TextContent(text="no"), is_error=True),
    )
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }
    assert [message["role"] for message in sent] == ["user", "assistant"] * 2 + ["user"]
    assert sent[1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "ls", "input": {"p": 1}},
    ]
    assert sent[2]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "text", "text": "one"}, image],
        }
    ]
    assert sent[4]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "(empty result)"}],
        },
        {
            "type": "tool_result",
            "tool_use_id": "c",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
            "cache_control": MARK,
        },
    ]


def test_thinking_goes_back_unchanged_or_as_text() -> None:
    sent = messages(
        UserMessage(content="x"),
        answer(
            ThinkingContent(thinking="hm", thinking_signature="s1"),
            ThinkingContent(thinking="", thinking_signature="s2"),
            ThinkingContent(redacted_data="opaque"),
            ThinkingContent(thinking="unsigned"),
            ThinkingContent(thinking=" "),
            TextContent(text="ok"),
            TextContent(text=" "),
        ),
        UserMessage(content=[TextContent(text=" "), TextContent(text="y")]),
    )
    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s1"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "unsigned"},
        {"type": "text", "text": "ok"},
    ]
    assert sent[2]["content"] == [{"type": "text", "text": "y", "cache_control": MARK}]


@pytest.mark.behaviour("lemon_ai.8")
def test_cache_markers_stand_behind_system_tools_and_the_last_user_message() -> None:
    history: list[Message] = [
        UserMessage(content="one"),
        answer(TextContent(text="two")),
        UserMessage(content="three"),
        answer(TextContent(text="four")),
    ]
    context = Context(system_prompt="x", messages=history, tools=(LS,))
    found = body(context)
    assert found["system"][-1]["cache_control"] == MARK
    assert found["tools"][-1]["cache_control"] == MARK
    assert found["messages"][2]["content"] == [
        {"type": "text", "text": "three", "cache_control": MARK}
    ]
    assert orjson.dumps(found).count(b"cache_control") == 3


@pytest.mark.behaviour("lemon_ai.8")
def test_a_long_retention_is_asked_for_at_the_vendor_only() -> None:
    env = {"LEMON_CACHE_RETENTION": "long"}
    long = {"type": "ephemeral", "ttl": "1h"}
    context = Context(system_prompt="x", messages=HELLO.messages, tools=(LS,))
    found = body(context, env=env)
    assert found["system"][0]["cache_control"] == long
    assert found["tools"][0]["cache_control"] == long
    assert found["messages"][0]["content"][0]["cache_control"] == long
    elsewhere = body(context, model=claude("https://proxy.example"), env=env)
    assert elsewhere["system"][0]["cache_control"] == MARK


# -- the rows of the reasoning table -----------------------------------------------------------

FIVE = ("low", "medium", "high", "xhigh", "max")
Level = ThinkingLevel | Literal[False] | None


def asked(level: Level, **changes: Any) -> dict[str, Any]:
    """The fields that the thinking level decides."""
    model = claude(**{"reasoning": True, **changes})
    found = body(options=StreamOptions(reasoning=level, temperature=0.5), model=model)
    names = ("thinking", "output_config", "temperature", "max_tokens")
    return {name: found[name] for name in names if name in found}


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "budget"),
    [
        ("minimal", 1_024),
        ("low", 4_096),
        ("medium", 10_000),
        ("high", 32_000),
        ("xhigh", 59_904),  # 64,000 do not fit beside an answer in 64,000
    ],
)
def test_budgets(level: ThinkingLevel, budget: int) -> None:
    found = asked(level)
    assert found["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert found["temperature"] == 1
    assert found["max_tokens"] >= budget + 4_096
    if level == "xhigh":
        assert asked(level, max_tokens=128_000)["thinking"]["budget_tokens"] == 64_000


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("level", [None, False])
def test_off_is_no_field(level: Level) -> None:
    plain = {"temperature": 0.5, "max_tokens": 21_333}
    assert asked(level) == plain
    assert asked(level, compat=Compat(thinking_style="adaptive")) == plain


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("disabled", {"thinking": {"type": "disabled"}}),
        ("between_tools", {"thinking": {"type": "between_tools"}}),
        ("low_effort", {"output_config": {"effort": "low"}}),
    ],
)
@pytest.mark.parametrize("level", [None, False])
def test_a_model_that_thinks_by_default_is_told_not_to(
    level: Level, way: str, expected: dict[str, Any]
) -> None:
    compat = Compat.model_validate({"thinking_style": "adaptive", "thinking_when_off": way})
    found = asked(level, sampling="never", compat=compat)
    assert found == {"max_tokens": 21_333, **expected}
    assert "thinking" not in asked(level, reasoning=False, compat=compat)


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "listed", "effort"),
    [
        ("minimal", FIVE, "low"),
        ("low", FIVE, "low"),
        ("medium", FIVE, "medium"),
        ("high", FIVE, "high"),
        ("xhigh", FIVE, "xhigh"),
        ("xhigh", ("low", "medium", "high", "max"), "max"),
        ("xhigh", ("low", "medium", "high"), "high"),
    ],
)
def test_efforts(level: ThinkingLevel, listed: tuple[str, ...], effort: str) -> None:
    found = asked(level, reasoning_levels=listed, compat=Compat(thinking_style="adaptive"))
    assert found == {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": effort},
        "max_tokens": 21_333,
    }
    shown = Compat(thinking_style="adaptive", thinking_display="summarized")
    assert asked(level, compat=shown)["thinking"] == {"type": "adaptive", "display": "summarized"}


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("level", ["high", None, False])
def test_a_model_that_does_not_reason_gets_no_field(level: Level) -> None:
    assert asked(level, reasoning=False) == {"temperature": 0.5, "max_tokens": 21_333}


BOUND = Compat(thinking_style="adaptive", thinking_bound_to_history=True)


def bound_history() -> Context:
    mine = answer(ThinkingContent(thinking="hm", thinking_signature="s"), TextContent(text="ok"))
    return Context(messages=[UserMessage(content="x"), mine, UserMessage(content="y")])


@pytest.mark.behaviour("lemon_ai.104")
def test_thinking_that_does_not_fit_its_history_any_more_is_left_out_by_the_service() -> None:
    """After a compaction the signed thinking would be refused, again and again."""
    model = claude(reasoning=True, sampling="never", compat=BOUND)
    options = StreamOptions(reasoning="high")
    found = body(bound_history(), options, model=model)
    assert found["thinking"] == {
        "type": "adaptive",
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert found["messages"][1]["content"][0]["type"] == "thinking"
    feature = ("thinking-binding-controls-2026-08-01",)
    assert betas(adapter_request(model, HELLO, options)) == feature
    always = BOUND.model_copy(update={"thinking_when_off": "low_effort"})
    model = model.model_copy(update={"compat": always})
    found = body(bound_history(), model=model)
    assert found["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert found["output_config"] == {"effort": "low"}
    assert betas(adapter_request(model)) == feature


@pytest.mark.behaviour("lemon_ai.104")
@pytest.mark.parametrize("way", ["omit", "disabled", "between_tools"])
def test_bound_thinking_is_not_sent_while_thinking_is_off(way: str) -> None:
    compat = BOUND.model_copy(update={"thinking_when_off": way})
    model = claude(reasoning=True, sampling="never", compat=compat)
    found = body(bound_history(), model=model)
    assert [block["type"] for block in found["messages"][1]["content"]] == ["text"]
    assert "block_binding" not in str(found)
    assert list(betas(adapter_request(model))) == []


def test_a_budget_of_the_callers_own() -> None:
    options = StreamOptions(reasoning="low", thinking_budgets={"low": 2_000}, max_tokens=100)
    found = body(options=options, model=claude(reasoning=True))
    assert found["thinking"]["budget_tokens"] == 2_000
    assert found["max_tokens"] == 6_096


def test_a_model_too_small_to_think_does_not() -> None:
    found = body(
        options=StreamOptions(reasoning="low"), model=claude(reasoning=True, max_tokens=4_096)
    )
    assert "thinking" not in found


def test_models_that_refuse_a_temperature_get_none() -> None:
    options = StreamOptions(temperature=0.5, reasoning="low")
    assert "temperature" not in body(options=options, model=claude(sampling="never"))
    assert "temperature" not in body(
        options=options, model=claude(sampling="never", reasoning=True)
    )


def test_the_beta_header() -> None:
    def features(level: Level, **changes: Any) -> list[str]:
        model = claude(**{"reasoning": True, **changes})
        return list(betas(adapter_request(model, options=StreamOptions(reasoning=level))))

    assert features("low") == ["interleaved-thinking-2025-05-14"]
    assert features(None) == []
    assert features("low", compat=Compat(thinking_style="adaptive")) == []
    assert features("low", compat=Compat(beta_features=("a", "b"))) == ["a", "b"]
    assert features("low", compat=Compat(beta_features=())) == []


# -- Kimi --------------------------------------------------------------------------------------


def test_kimi_gets_the_newest_messages_without_orphaned_results() -> None:
    model = claude("https://api.kimi.com/coding", provider="kimi_coding")
    turn: list[Message] = [
        UserMessage(content="x"),
        answer(ToolCall(id="a", name="ls")),
        result("a", TextContent(text="r")),
    ]
    history = [*turn * 80, UserMessage(content="end")]
    sent = messages(*history, model=model)
    # 200 of 241 begin with a result; it goes, and 199 are left.
    assert len(sent) == 199
    assert sent[0]["role"] == "user"
    assert "tool_result" not in str(sent[0])
    assert sent[-1]["content"][0]["text"] == "end"
    env = {"LEMON_KIMI_MAX_REQUEST_MESSAGES": "1"}
    assert len(body(Context(messages=history), model=model, env=env)["messages"]) == 1
    assert len(messages(*history)) == 241
