"""The Responses API: building the request."""

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
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.adapters.openai_responses import AzureResponsesAdapter, OpenAIResponsesAdapter
from lemon_ai.adapters.openai_responses_request import build_body, output_limit_bytes
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.tests.models import gpt
from lemon_ai.tests.support import HELLO, TOOL_CONTEXT, adapter_request
from lemon_ai.types import AssistantContent

PNG = ImageContent(data="aGk=", mime_type="image/png")
IMAGE = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aGk="}
VENDOR = "https://api.openai.com/v1"


MODEL = gpt()


def body(
    context: Context = HELLO,
    options: StreamOptions | None = None,
    *,
    model: Model = MODEL,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    raw = build_body(adapter_request(model, context, options, env), model.id, ToolCache())
    assert raw is not None
    found = orjson.loads(raw)
    assert isinstance(found, dict)
    return found


def items(*history: Message, model: Model = MODEL) -> list[dict[str, Any]]:
    found = body(Context(messages=history), model=model)["input"]
    assert isinstance(found, list)
    return found


def answer(*blocks: AssistantContent, model: str = MODEL.id) -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks), api=MODEL.api, provider=MODEL.provider, model=model
    )


def result(call_id: str, *blocks: TextContent | ImageContent) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="ls", content=list(blocks))


def test_a_plain_question() -> None:
    context = Context(system_prompt="Be short.", messages=HELLO.messages)
    options = StreamOptions(temperature=0.5, max_tokens=9, service_tier="flex", session_id="s")
    assert body(context, options) == {
        "model": "gpt",
        "input": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [{"type": "input_text", "text": "Say hello"}]},
        ],
        "stream": True,
        "store": False,
        "prompt_cache_key": "s",
        "max_output_tokens": 16,
        "service_tier": "flex",
        "temperature": 0.5,
    }


def test_a_reasoning_model_is_addressed_by_the_developer() -> None:
    context = Context(system_prompt="x", messages=HELLO.messages)
    assert body(context, model=gpt(reasoning=True))["input"][0]["role"] == "developer"
    elsewhere = gpt("http://127.0.0.1:1/v1", reasoning=True)
    assert body(context, model=elsewhere)["input"][0]["role"] == "system"


def test_tools_are_flat_and_run_in_parallel() -> None:
    found = body(TOOL_CONTEXT)
    assert found["tools"] == [
        {
            "type": "function",
            "name": "ls",
            "description": "List a folder.",
            "parameters": TOOL_CONTEXT.tools[0].parameters,
            "strict": False,
        }
    ]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("auto", True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("any", "required"),
        ("none", "none"),
        ("ls", {"type": "function", "name": "ls"}),
    ],
)
def test_tool_choices(choice: str, expected: object) -> None:
    assert body(TOOL_CONTEXT, StreamOptions(tool_choice=choice))["tool_choice"] == expected


ITEM = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "opaque"}
REASONING = ThinkingContent(thinking="hm", thinking_signature=orjson.dumps(ITEM).decode())


def test_the_models_own_answer_goes_back_as_the_items_it_was() -> None:
    text = TextContent(text="I look.", text_signature='{"id":"msg_7","phase":"commentary"}')
    call = ToolCall(id="call_1|fc_1", name="ls", arguments={"p": 1})
    sent = items(
        UserMessage(content="x"),
        answer(REASONING, text, call),
        result("call_1|fc_1", TextContent(text="one"), PNG),
    )
    assert sent[1:] == [
        ITEM,
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            "status": "completed",
            "id": "msg_7",
            "phase": "commentary",
        },
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "ls",
            "arguments": '{"p":1}',
            "id": "fc_1",
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "one"}, IMAGE],
        },
    ]


@pytest.mark.parametrize("changes", [{"id": "other"}, {"provider": "mine"}])
def test_another_models_answer_loses_what_only_that_model_can_read(
    changes: dict[str, str],
) -> None:
    history: list[Message] = [
        UserMessage(content="x"),
        answer(REASONING, ToolCall(id="call_1|fc_1", name="ls")),
        result("call_1|fc_1"),
    ]
    _, thinking, call, output = items(*history, model=gpt(**changes))
    assert thinking["content"][0]["text"] == "hm"
    assert "phase" not in thinking
    assert "id" not in call
    assert output == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "(empty result)",
    }


def test_reasoning_with_nothing_behind_it_is_left_out() -> None:
    """The service refuses a reasoning item without the item that it led to."""
    sent = items(UserMessage(content="x"), answer(TextContent(text="a"), REASONING))
    assert [item.get("type") for item in sent] == [None, "message"]
    broken = ThinkingContent(thinking="hm", thinking_signature="no json")
    sent = items(UserMessage(content="x"), answer(broken, TextContent(text="a")))
    assert [item.get("type") for item in sent] == [None, "message"]


def test_ids_obey_the_service() -> None:
    odd = ToolCall(id="call:1|item/" + "x" * 90, name="ls")
    same = ToolCall(id="call:1|fc_2", name="ls")
    text = TextContent(text="a", text_signature=orjson.dumps({"id": "m" * 90}).decode())
    sent = items(UserMessage(content="x"), answer(text, odd, same), result(same.id), result(odd.id))
    message, first, second, *outputs = sent[1:]
    assert len(message["id"]) <= 64
    assert message["id"].startswith("msg_")
    assert first["call_id"] == "call_1"
    assert first["id"].startswith("fc_item_x")
    assert len(first["id"]) == 64
    assert second["call_id"] != first["call_id"]
    assert [o["call_id"] for o in outputs] == [second["call_id"], first["call_id"]]


def test_a_long_output_is_cut_between_characters() -> None:
    assert output_limit_bytes(gpt(context_window=8_192)) == 8_192
    assert output_limit_bytes(gpt(context_window=100_000)) == 40_000
    assert output_limit_bytes(gpt(context_window=1_000_000)) == 65_536
    small = gpt(context_window=8_192)
    history: list[Message] = [UserMessage(content="x"), answer(ToolCall(id="c", name="ls"))]
    *_, output = items(*history, result("c", TextContent(text="日" * 5_000)), model=small)
    assert output["output"] == "日" * 2_730


# -- reasoning ---------------------------------------------------------------------------------

Level = ThinkingLevel | Literal[False] | None
LISTED = ("none", "low", "medium", "high")


@pytest.mark.behaviour("lemon_ai.7")
@pytest.mark.parametrize(
    ("level", "listed", "expected"),
    [
        (None, LISTED, None),
        (False, LISTED, {"effort": "none"}),
        (False, (), None),
        ("minimal", (), {"effort": "minimal", "summary": "auto"}),
        ("low", LISTED, {"effort": "low", "summary": "auto"}),
        ("medium", LISTED, {"effort": "medium", "summary": "auto"}),
        ("high", LISTED, {"effort": "high", "summary": "auto"}),
        ("xhigh", (*LISTED, "xhigh"), {"effort": "xhigh", "summary": "auto"}),
        ("minimal", LISTED, {"effort": "low", "summary": "auto"}),
        ("xhigh", LISTED, {"effort": "high", "summary": "auto"}),
    ],
)
def test_reasoning_rows(
    level: Level, listed: tuple[str, ...], expected: dict[str, str] | None
) -> None:
    model = gpt(reasoning=True, reasoning_levels=listed)
    found = body(options=StreamOptions(reasoning=level), model=model)
    assert found.get("reasoning") == expected
    assert found["include"] == ["reasoning.encrypted_content"]
    silent = body(options=StreamOptions(reasoning=level), model=gpt(reasoning_levels=listed))
    assert not {"reasoning", "include"} & set(silent)


def test_the_summary_may_be_chosen() -> None:
    options = StreamOptions(reasoning="low", reasoning_summary="detailed")
    assert body(options=options, model=gpt(reasoning=True))["reasoning"]["summary"] == "detailed"


def test_a_temperature_only_where_the_model_takes_it() -> None:
    careful = gpt(reasoning=True, reasoning_levels=LISTED, sampling="without_reasoning")
    on = StreamOptions(temperature=0.5, reasoning="low")
    off = StreamOptions(temperature=0.5, reasoning=False)
    assert "temperature" not in body(options=on, model=careful)
    assert body(options=off, model=careful)["temperature"] == 0.5


# -- caching -----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_ai.8")
def test_the_cache_key_is_the_session() -> None:
    assert "prompt_cache_key" not in body()
    long = body(options=StreamOptions(session_id="s" * 65))["prompt_cache_key"]
    assert len(long) == 64
    assert long != "s" * 64


@pytest.mark.behaviour("lemon_ai.8")
def test_a_long_retention_is_asked_for_at_the_vendor_only() -> None:
    env = {"LEMON_CACHE_RETENTION": "long"}
    assert body(env=env)["prompt_cache_retention"] == "24h"
    newer = body(env=env, model=gpt(compat=Compat(prompt_cache_ttl="12h")))
    assert newer["prompt_cache_options"] == {"ttl": "12h"}
    assert "prompt_cache_retention" not in newer
    for found in (body(), body(env=env, model=gpt("http://127.0.0.1:1/v1"))):
        assert not {"prompt_cache_retention", "prompt_cache_options"} & set(found)


# -- where it goes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1/responses"),
        ("http://127.0.0.1:1234", "http://127.0.0.1:1234/v1/responses"),
        ("https://gateway.example/openai/v1", "https://gateway.example/openai/v1/responses"),
        ("https://gateway.example/api/v3", "https://gateway.example/api/v3/responses"),
    ],
)
def test_the_address(base_url: str, expected: str) -> None:
    assert OpenAIResponsesAdapter().url(adapter_request(gpt(base_url))) == expected


AZURE = "azure_openai_responses"


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://me.openai.azure.com", "https://me.openai.azure.com/openai/v1"),
        ("https://me.openai.azure.com/openai", "https://me.openai.azure.com/openai/v1"),
        ("https://me.openai.azure.com/openai/v1/", "https://me.openai.azure.com/openai/v1"),
        ("https://me.services.ai.azure.com", "https://me.services.ai.azure.com/openai/v1"),
        (
            "https://a.cognitiveservices.azure.com",
            "https://a.cognitiveservices.azure.com/openai/v1",
        ),
        ("https://proxy.example/azure", "https://proxy.example/azure"),
    ],
)
def test_the_address_at_azure(base_url: str, expected: str) -> None:
    model = gpt(base_url, api=AZURE, provider=AZURE)
    adapter = AzureResponsesAdapter()
    assert adapter.url(adapter_request(model)) == f"{expected}/responses?api-version=v1"
    env = {"AZURE_OPENAI_API_VERSION": "2026-01-01 preview"}
    url = adapter.url(adapter_request(model, env=env))
    assert url == f"{expected}/responses?api-version=2026-01-01%20preview"
    options = StreamOptions(provider_options={AZURE: {"api_version": "v2"}})
    assert adapter.url(adapter_request(model, options=options, env=env)).endswith("=v2")


def test_the_deployment_at_azure() -> None:
    model = gpt("https://me.openai.azure.com", api=AZURE, provider="my_azure")
    env = {"AZURE_OPENAI_DEPLOYMENT_NAME_MAP": "gpt = mine, other=x, broken"}

    def name(given: dict[str, object], env: Mapping[str, str]) -> str:
        options = StreamOptions(provider_options={AZURE: given})
        return AzureResponsesAdapter().model_name(adapter_request(model, HELLO, options, env))

    assert name({}, {}) == "gpt"
    assert name({}, env) == "mine"
    assert name({"deployment_name_map": {"gpt": "mapped"}}, env) == "mapped"
    assert name({"deployment_name": "named", "deployment_name_map": {"gpt": "m"}}, env) == "named"
