"""Gemini's `streamGenerateContent`: building the request."""

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
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.adapters.google_request import build_body, made_up_id
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.tests.cloud_models import gemini
from lemon_ai.tests.history import FULL_HISTORY
from lemon_ai.tests.support import HELLO, LS, TOOL_CONTEXT, adapter_request
from lemon_ai.types import AssistantContent, ThinkingStyle

PNG = ImageContent(data="aGk=", mime_type="image/png")
SIGNATURE = "c2lnbmF0dXJl"

MODEL = gemini()
OLD = gemini("gemini_2_5_flash")


def body(
    context: Context = HELLO, options: StreamOptions | None = None, *, model: Model = MODEL
) -> dict[str, Any]:
    raw = build_body(adapter_request(model, context, options), ToolCache())
    assert raw is not None
    document = orjson.loads(raw)
    assert isinstance(document, dict)
    return document


def contents(*messages: Message, model: Model = MODEL) -> list[dict[str, Any]]:
    found = body(Context(messages=[UserMessage(content="Hi"), *messages]), model=model)["contents"]
    assert found[0] == {"role": "user", "parts": [{"text": "Hi"}]}
    assert isinstance(found, list)
    return found[1:]


def answer(*blocks: AssistantContent, model: Model = MODEL) -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks), api=model.api, provider=model.provider, model=model.id
    )


def result(call: ToolCall, *blocks: TextContent | ImageContent, **more: Any) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id, tool_name=call.name, content=list(blocks), **more
    )


def test_the_whole_body() -> None:
    context = Context(system_prompt="Be Lemon.", messages=HELLO.messages, tools=(LS,))
    options = StreamOptions(temperature=0.5, max_tokens=99, tool_choice="auto", reasoning="low")
    assert body(context, options) == {
        "systemInstruction": {"parts": [{"text": "Be Lemon."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "ls",
                        "description": "List a folder.",
                        "parameters": {
                            "type": "object",
                            "properties": {"path": {"type": "string"}},
                        },
                    }
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {
            "temperature": 0.5,
            "maxOutputTokens": 99,
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
        },
        "contents": [{"role": "user", "parts": [{"text": "Say hello"}]}],
    }
    assert body() == {"contents": [{"role": "user", "parts": [{"text": "Say hello"}]}]}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("any", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ("ls", {"mode": "ANY", "allowedFunctionNames": ["ls"]}),
    ],
)
def test_tool_choice(choice: str, expected: object) -> None:
    found = body(TOOL_CONTEXT, StreamOptions(tool_choice=choice))
    assert found["toolConfig"] == {"functionCallingConfig": expected}
    assert "toolConfig" not in body(TOOL_CONTEXT)
    assert "toolConfig" not in body(HELLO, StreamOptions(tool_choice=choice))


LEVELS: tuple[ThinkingLevel, ...] = ("minimal", "low", "medium", "high", "xhigh")
BUDGET_ROWS: dict[ThinkingStyle, tuple[int, ...]] = {
    "gemini_2_5_pro": (128, 2_048, 8_192, 32_768, 32_768),
    "gemini_2_5_flash": (128, 2_048, 8_192, 24_576, 24_576),
    "gemini_2_5_flash_lite": (512, 2_048, 8_192, 24_576, 24_576),
}
LEVEL_ROWS = {
    ("low", "high"): ("LOW", "LOW", "HIGH", "HIGH", "HIGH"),
    ("minimal", "low", "medium", "high"): ("MINIMAL", "LOW", "MEDIUM", "HIGH", "HIGH"),
    ("low", "medium", "high"): ("LOW", "LOW", "MEDIUM", "HIGH", "HIGH"),
    ("low", "medium", "high", "xhigh"): ("LOW", "LOW", "MEDIUM", "HIGH", "XHIGH"),
}


def thinking(model: Model, level: ThinkingLevel | Literal[False] | None, **more: Any) -> object:
    found = body(options=StreamOptions(reasoning=level, **more), model=model)
    return found.get("generationConfig", {}).get("thinkingConfig")


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("style", BUDGET_ROWS)
def test_rows_of_budgets(style: ThinkingStyle) -> None:
    model = gemini(style)
    expected = [{"includeThoughts": True, "thinkingBudget": n} for n in BUDGET_ROWS[style]]
    assert [thinking(model, level) for level in LEVELS] == expected
    assert thinking(model, None) is None
    off = None if style == "gemini_2_5_pro" else {"thinkingBudget": 0}
    assert thinking(model, False) == off
    own = thinking(model, "low", thinking_budgets={"low": 77})
    assert own == {"includeThoughts": True, "thinkingBudget": 77}


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("listed", LEVEL_ROWS)
def test_rows_of_levels(listed: tuple[str, ...]) -> None:
    model = gemini(reasoning_levels=listed)
    expected = [{"includeThoughts": True, "thinkingLevel": word} for word in LEVEL_ROWS[listed]]
    assert [thinking(model, level) for level in LEVELS] == expected
    assert thinking(model, None) is thinking(model, False) is None


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize("style", [*BUDGET_ROWS, "gemini_level"])
@pytest.mark.parametrize("level", ["high", False])
def test_a_model_that_does_not_reason_gets_no_field(
    style: ThinkingStyle, level: ThinkingLevel | Literal[False]
) -> None:
    assert thinking(gemini(style, reasoning=False), level) is None


@pytest.mark.parametrize("provider", ["google", "google_vertex"])
def test_every_row_of_the_catalogue_says_how_it_thinks(provider: str) -> None:
    for model in Catalog().get_models(provider):
        assert model.compat is not None
        assert model.compat.thinking_style is not None
        has_levels = model.compat.thinking_style == "gemini_level"
        assert bool(model.reasoning_levels) == has_levels
        assert (model.compat.requires_thought_signatures is True) == has_levels
        # From 3.7 on there is no `MINIMAL`.
        if model.id.startswith(("gemini-3.8", "gemini-4")):
            assert "minimal" not in model.reasoning_levels


# -- signatures ----------------------------------------------------------------------------------


def test_signatures_go_back_where_they_came_from() -> None:
    first = ToolCall(id="a", name="ls", arguments={"path": "x"}, thought_signature=SIGNATURE)
    second = ToolCall(id="b", name="ls")
    own = answer(
        ThinkingContent(thinking="Hm.", thinking_signature=SIGNATURE),
        TextContent(text="I look.", text_signature="bm90IGJhc2U2NA"),  # no base64: it lacks its end
        first,
        second,
    )
    results = [result(first, TextContent(text="one")), result(second, TextContent(text="two"))]
    assert contents(own, *results) == [
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True, "thoughtSignature": SIGNATURE},
                {"text": "I look."},
                {
                    "functionCall": {"id": "a", "name": "ls", "args": {"path": "x"}},
                    "thoughtSignature": SIGNATURE,
                },
                {"functionCall": {"id": "b", "name": "ls", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "a", "name": "ls", "response": {"output": "one"}}},
                {"functionResponse": {"id": "b", "name": "ls", "response": {"output": "two"}}},
            ],
        },
    ]


@pytest.mark.behaviour("lemon_ai.2")
@pytest.mark.parametrize("signature", [None, "no base64!"])
def test_a_step_without_its_signature_is_told_in_words(signature: str | None) -> None:
    """Gemini 3 and later refuse the call otherwise."""
    call = ToolCall(id="a", name="ls", arguments={"path": "x"}, thought_signature=signature)
    steps = (answer(call), result(call, TextContent(text="one"), PNG))
    told, results = contents(*steps)
    assert told == {"role": "model", "parts": [{"text": '[Called the tool ls with {"path":"x"}]'}]}
    assert results == {
        "role": "user",
        "parts": [
            {"text": "[The tool ls answered: one]"},
            {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        ],
    }
    failed = result(call, TextContent(text="no"), is_error=True)
    assert contents(answer(call), failed)[1]["parts"] == [{"text": "[The tool ls failed: no]"}]
    assert "functionCall" in contents(*steps, model=OLD)[0]["parts"][0]


@pytest.mark.behaviour("lemon_ai.2")
def test_a_foreign_conversation_goes_on_with_a_model_that_wants_signatures() -> None:
    found = body(Context(messages=FULL_HISTORY, tools=(LS,)))
    assert [content["role"] for content in found["contents"]] == [
        *("user", "user", "model", "user", "model", "user"),
    ]
    raw = orjson.dumps(found).decode()
    assert "thoughtSignature" not in raw
    assert "functionCall" not in raw
    assert "[The tool ls failed: no such folder]" in raw


def test_each_step_is_judged_by_its_first_call() -> None:
    lost = ToolCall(id="a", name="ls")
    signed = ToolCall(id="b", name="ls", thought_signature=SIGNATURE)
    found = contents(
        answer(lost),
        result(lost, TextContent(text="one")),
        answer(signed),
        result(signed, TextContent(text="two")),
    )
    kinds = [next(iter(content["parts"][0])) for content in found]
    assert kinds == ["text", "text", "functionCall", "functionResponse"]


def test_signatures_of_another_model_stay_away() -> None:
    call = ToolCall(id="a", name="ls", thought_signature=SIGNATURE)
    own = answer(TextContent(text="x", text_signature=SIGNATURE), call)
    other = own.model_copy(update={"model": "another"})
    raw = orjson.dumps(contents(other, result(call), model=OLD)).decode()
    assert SIGNATURE not in raw


# -- ids -----------------------------------------------------------------------------------------


def sent_ids(call: ToolCall, model: Model, source: Model | None = None) -> list[object]:
    found = contents(answer(call, model=source or model), result(call), model=model)
    part = found[0]["parts"][0]["functionCall"]
    return [part.get("id"), found[1]["parts"][0]["functionResponse"].get("id")]


def test_ids_that_the_service_gave_go_back_and_made_up_ones_do_not() -> None:
    given = ToolCall(id="fc-1", name="ls", thought_signature=SIGNATURE)
    made_up = given.model_copy(update={"id": made_up_id("ls", 1_764_000_000_000, 1)})
    vertex = gemini("gemini_2_5_flash", api="google_vertex", provider="google_vertex")
    assert sent_ids(given, OLD) == ["fc-1", "fc-1"]
    assert sent_ids(made_up, OLD) == [None, None]
    assert sent_ids(given, vertex) == [None, None]
    assert sent_ids(given, OLD, source=vertex) == [None, None]
    for name in ("claude-sonnet-5-5", "gpt-oss-120b"):
        other = gemini("gemini_2_5_flash", id=name, api="google_vertex", provider="google_vertex")
        assert sent_ids(made_up, other) == [made_up.id, made_up.id]


# -- results -------------------------------------------------------------------------------------


def test_images_of_results() -> None:
    """Nested for Gemini 3, else in a turn of their own."""
    call = ToolCall(id="a", name="look", thought_signature=SIGNATURE)
    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    below = {"output": "(see attached image)"}
    response = {"id": "a", "name": "look", "response": below}
    new = contents(answer(call), result(call, PNG))
    assert new[1]["parts"] == [{"functionResponse": {**response, "parts": [image]}}]
    old = contents(answer(call, model=OLD), result(call, PNG), model=OLD)
    assert old[1]["parts"] == [{"functionResponse": response}]
    assert old[2] == {"role": "user", "parts": [image]}


def test_results_without_text_and_failed_ones() -> None:
    call = ToolCall(id="a", name="ls", thought_signature=SIGNATURE)
    empty = contents(answer(call), result(call, TextContent(text=" ")))
    assert empty[1]["parts"][0]["functionResponse"]["response"] == {"output": "(empty result)"}
    failed = contents(answer(call), result(call, TextContent(text="no"), is_error=True))
    assert failed[1]["parts"][0]["functionResponse"]["response"] == {"error": "no"}
