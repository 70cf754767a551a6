"""Bedrock's `converse-stream`: building the request."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import pytest

from lemon_ai import (
    AssistantMessage,
    Catalog,
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
from lemon_ai.adapters.bedrock_request import build_body
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.tests.cloud_models import BUDGET, CLAUDE, bedrock
from lemon_ai.tests.support import HELLO, LS, TOOL_CONTEXT, adapter_request
from lemon_ai.thinking import adjust_max_tokens_for_thinking
from lemon_ai.types import AssistantContent

PNG = ImageContent(data="aGk=", mime_type="image/png")
POINT = {"cachePoint": {"type": "default"}}


OTHER = bedrock()


def body(
    context: Context = HELLO, options: StreamOptions | None = None, *, model: Model = CLAUDE
) -> dict[str, Any]:
    raw = build_body(adapter_request(model, context, options), ToolCache())
    assert raw is not None
    document = orjson.loads(raw)
    assert isinstance(document, dict)
    return document


def messages(*found: Message, model: Model = CLAUDE) -> Any:
    return body(Context(messages=found), model=model)["messages"]


def answer(*blocks: AssistantContent, model: Model = CLAUDE) -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks), api=model.api, provider=model.provider, model=model.id
    )


ASK = UserMessage(content="Hi")
CALL = ToolCall(id="call:1", name="ls", arguments={"path": "x"})
RESULT = ToolResultMessage(
    tool_call_id="call:1", tool_name="ls", content=[TextContent(text="one"), PNG]
)


def test_the_whole_body() -> None:
    context = Context(system_prompt="Be Lemon.", messages=HELLO.messages, tools=(LS,))
    options = StreamOptions(temperature=0.5, max_tokens=99, tool_choice="any")
    spec = {
        "name": "ls",
        "description": "List a folder.",
        "inputSchema": {
            "json": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    assert body(context, options) == {
        "system": [{"text": "Be Lemon."}],
        "inferenceConfig": {"maxTokens": 99, "temperature": 0.5},
        "toolConfig": {"tools": [{"toolSpec": spec}], "toolChoice": {"any": {}}},
        "messages": [{"role": "user", "content": [{"text": "Say hello"}]}],
    }
    assert body()["inferenceConfig"] == {"maxTokens": 20_000}


# -- messages ------------------------------------------------------------------------------------


def test_blocks_of_every_kind() -> None:
    found = messages(
        UserMessage(content=[TextContent(text="See"), PNG, TextContent(text=" ")]),
        answer(
            ThinkingContent(thinking="Hm.", thinking_signature="sig"),
            ThinkingContent(redacted_data="b3BhcXVl"),
            TextContent(text="I look."),
            CALL,
        ),
        RESULT,
    )
    image = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
    assert found == [
        {"role": "user", "content": [{"text": "See"}, image]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
                {"reasoningContent": {"redactedContent": "b3BhcXVl"}},
                {"text": "I look."},
                {"toolUse": {"toolUseId": "call_1", "name": "ls", "input": {"path": "x"}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "call_1",
                        "content": [{"text": "one"}, image],
                        "status": "success",
                    }
                }
            ],
        },
    ]


def test_roles_take_turns() -> None:
    """The service refuses two messages of one role in a row."""
    failed = RESULT.model_copy(update={"is_error": True, "content": [TextContent(text=" ")]})
    found = messages(
        ASK, UserMessage(content="again"), answer(CALL), failed, UserMessage(content="Go")
    )
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert found[0]["content"] == [{"text": "Hi"}, {"text": "again"}]
    result, go = found[2]["content"]
    assert result["toolResult"]["status"] == "error"
    assert result["toolResult"]["content"] == [{"text": "(empty result)"}]
    assert go == {"text": "Go"}


def test_only_claude_is_given_signatures() -> None:
    signed = ThinkingContent(thinking="Hm.", thinking_signature="sig")
    plain = ThinkingContent(thinking="Hm.")
    text = TextContent(text="x")

    def first(block: ThinkingContent, model: Model) -> object:
        return messages(ASK, answer(block, text, model=model), model=model)[1]["content"][0]

    reasoning = {"reasoningContent": {"reasoningText": {"text": "Hm."}}}
    assert first(signed, OTHER) == first(plain, OTHER) == reasoning
    assert first(plain, CLAUDE) == {"text": "Hm."}  # unsigned, Claude refuses it
    assert "signature" in str(first(signed, CLAUDE))


def test_a_model_without_tools_reads_of_calls_in_words() -> None:
    found = messages(ASK, answer(CALL), RESULT, model=bedrock(BUDGET, tools=False))
    assert found[1]["content"] == [{"text": '[Called the tool ls with {"path":"x"}]'}]
    assert found[2]["content"][0] == {"text": "[The tool ls answered: one]"}
    assert "image" in found[2]["content"][1]


# -- tools ---------------------------------------------------------------------------------------


def tool_config(
    choice: str | None, *history: Message, model: Model = CLAUDE, level: ThinkingLevel | None = None
) -> Any:
    context = Context(messages=[ASK, *history], tools=(LS,))
    options = StreamOptions(tool_choice=choice, reasoning=level)
    return body(context, options, model=model).get("toolConfig")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(None, None), ("auto", {"auto": {}}), ("any", {"any": {}}), ("ls", {"tool": {"name": "ls"}})],
)
def test_tool_choice(choice: str | None, expected: object) -> None:
    assert tool_config(choice).get("toolChoice") == expected


def test_none_drops_the_tools_unless_the_history_needs_them() -> None:
    assert tool_config("none") is None
    kept = tool_config("none", answer(CALL), RESULT)
    assert len(kept["tools"]) == 1
    assert "toolChoice" not in kept


def test_a_history_with_calls_has_tools_also_when_none_are_offered() -> None:
    found = body(Context(messages=[ASK, answer(CALL), RESULT]))["toolConfig"]
    spec = {"name": "ls", "inputSchema": {"json": {"type": "object"}}}
    assert found == {"tools": [{"toolSpec": spec}]}


@pytest.mark.parametrize("choice", ["any", "ls"])
def test_a_forced_choice_is_lowered_while_claude_thinks(choice: str) -> None:
    assert tool_config(choice, level="low")["toolChoice"] == {"auto": {}}
    assert tool_config(choice, level="low", model=OTHER)["toolChoice"] != {"auto": {}}
    never = bedrock({**BUDGET, "supports_forced_tool_choice": False})
    assert tool_config(choice, model=never)["toolChoice"] == {"auto": {}}


def test_a_blank_description_is_left_out() -> None:
    """The service refuses an empty one."""
    found = body(Context(messages=[ASK], tools=(Tool("b", " ", {"a": 1}),)))
    spec = {"name": "b", "inputSchema": {"json": {"type": "object", "a": 1}}}
    assert found["toolConfig"]["tools"] == [{"toolSpec": spec}]


# -- caching -------------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_ai.8")
def test_cache_points_stand_behind_the_system_prompt_and_the_last_user_message() -> None:
    model = bedrock({**BUDGET, "supports_cache_points": True})
    text = answer(TextContent(text="x"))
    history: list[Message] = [ASK, text, UserMessage(content="plain string")]
    found = body(Context(system_prompt="Be Lemon.", messages=history), model=model)
    assert found["system"] == [{"text": "Be Lemon."}, POINT]
    assert [message["content"][-1] for message in found["messages"]] == [
        {"text": "Hi"},
        {"text": "x"},
        POINT,
    ]
    assert found["messages"][2]["content"][0] == {"text": "plain string"}
    results = body(Context(messages=[ASK, answer(CALL), RESULT]), model=model)["messages"][-1]
    assert results["content"][-1] == POINT
    assert "cachePoint" not in str(body(TOOL_CONTEXT))


# -- thinking ------------------------------------------------------------------------------------

LEVELS: tuple[ThinkingLevel, ...] = ("minimal", "low", "medium", "high", "xhigh")


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "budget"), list(zip(LEVELS, (1_024, 2_048, 8_192, 16_384, 16_384), strict=True))
)
def test_rows_of_budgets(level: ThinkingLevel, budget: int) -> None:
    found = body(options=StreamOptions(reasoning=level, max_tokens=9_000, temperature=0.5))
    thinking = {"type": "enabled", "budget_tokens": budget}
    assert found["additionalModelRequestFields"] == {"thinking": thinking}
    assert found["inferenceConfig"] == {"maxTokens": 9_000 + budget, "temperature": 1.0}


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "effort"), list(zip(LEVELS, ("low", "low", "medium", "high", "max"), strict=True))
)
def test_rows_of_adaptive_models(level: ThinkingLevel, effort: str) -> None:
    """As on Anthropic's own service."""
    compat = {"thinking_style": "adaptive", "thinking_display": "summarized"}
    model = bedrock(compat, reasoning_levels=("low", "medium", "high", "max"))
    found = body(options=StreamOptions(reasoning=level, temperature=0.5), model=model)
    assert found["additionalModelRequestFields"] == {
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": effort},
    }
    assert "temperature" not in found["inferenceConfig"]


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("level", [None, False, "high"])
def test_without_thinking_there_is_no_field(level: ThinkingLevel | Literal[False] | None) -> None:
    options = StreamOptions(reasoning=level)
    for model in (bedrock(BUDGET, reasoning=False), OTHER):
        assert "additionalModelRequestFields" not in body(options=options, model=model)
    if not level:
        assert "additionalModelRequestFields" not in body(options=options)


def test_a_model_that_thinks_by_default_is_told_not_to() -> None:
    model = bedrock({"thinking_style": "adaptive", "thinking_when_off": "disabled"})
    found = body(options=StreamOptions(reasoning=False), model=model)
    assert found["additionalModelRequestFields"] == {"thinking": {"type": "disabled"}}


@pytest.mark.behaviour("lemon_ai.104")
def test_thinking_that_is_bound_to_its_history() -> None:
    """What does not fit any more is left out by the service, or, while thinking is off,
    by us."""
    compat = {"thinking_style": "adaptive", "thinking_bound_to_history": True}
    model = bedrock(compat, reasoning_levels=("low", "high"))
    mine = answer(ThinkingContent(thinking="Hm.", thinking_signature="s"), TextContent(text="x"))
    context = Context(messages=[ASK, mine, ASK])
    found = body(context, StreamOptions(reasoning="high"), model=model)
    assert found["additionalModelRequestFields"] == {
        "thinking": {
            "type": "adaptive",
            "block_binding": {"prefix_mismatch_behavior": "drop_block"},
        },
        "output_config": {"effort": "high"},
        "anthropic_beta": ["thinking-binding-controls-2026-08-01"],
    }
    assert "reasoningContent" in found["messages"][1]["content"][0]
    assert body(context, model=model)["messages"][1]["content"] == [{"text": "x"}]


def test_a_budget_of_ones_own_and_a_model_that_is_too_small() -> None:
    own = StreamOptions(reasoning="low", thinking_budgets={"low": 5_000}, max_tokens=1_000)
    assert body(options=own)["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 5_000
    small = bedrock(BUDGET, max_tokens=1_500)
    found = body(options=StreamOptions(reasoning="high", temperature=0.5), model=small)
    assert "additionalModelRequestFields" not in found
    assert found["inferenceConfig"] == {"maxTokens": 500, "temperature": 0.5}


@pytest.mark.parametrize(
    ("base", "model_max", "level", "expected"),
    [
        (4_000, 64_000, "low", (6_048, 2_048)),
        (4_000, 5_000, "low", (5_000, 2_048)),
        (4_000, 8_192, "medium", (8_192, 7_168)),
        (4_000, 500, "xhigh", (500, 0)),
    ],
)
def test_the_limit_grows_with_the_budget_as_far_as_the_model_goes(
    base: int, model_max: int, level: ThinkingLevel, expected: tuple[int, int]
) -> None:
    assert adjust_max_tokens_for_thinking(base, model_max, level) == expected
    assert adjust_max_tokens_for_thinking(10, 100, "low", {"low": 20}) == (30, 20)


def test_every_row_of_the_catalogue_that_reasons_is_claude() -> None:
    for model in Catalog().get_models("amazon_bedrock"):
        has_style = model.compat is not None and model.compat.thinking_style is not None
        assert model.reasoning == has_style == ("anthropic" in model.id)
        if has_style:
            assert model.compat is not None
            assert model.compat.supports_cache_points
