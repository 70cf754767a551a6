"""Chat completions: building the request."""

from __future__ import annotations

from typing import Any

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
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.adapters.openai_chat_request import _tool, build_body
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.tests.support import HELLO, LS, chat_model, request_body
from lemon_ai.types import UserContent

PNG = ImageContent(data="aGk=", mime_type="image/png")
ASK = UserMessage(content="x")
VISION = chat_model(input=("text", "image"))


def call(call_id: str, **arguments: object) -> ToolCall:
    return ToolCall(id=call_id, name="ls", arguments=arguments)


def answer(*blocks: TextContent | ThinkingContent | ToolCall) -> AssistantMessage:
    """An answer of the very model that is asked again."""
    model = chat_model()
    return AssistantMessage(
        content=list(blocks), api=model.api, provider=model.provider, model=model.id
    )


def result(call_id: str, *blocks: TextContent | ImageContent) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="ls", content=list(blocks))


def sent(*messages: Message, model: Model | None = None) -> list[dict[str, Any]]:
    """The messages as they go on the wire."""
    found = request_body(messages, model=model)["messages"]
    assert isinstance(found, list)
    return found


def test_the_body_of_a_plain_question() -> None:
    assert request_body(HELLO.messages, system_prompt="Be short.") == {
        "model": "fake-model",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Say hello"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_vendors_own_service_gets_its_own_fields() -> None:
    model = chat_model("https://api.openai.com/v1", reasoning=True)
    options = StreamOptions(max_tokens=9, service_tier="flex", reasoning="low")
    body = request_body(HELLO.messages, model=model, system_prompt="x", options=options)
    assert body["store"] is False
    assert body["max_completion_tokens"] == 9
    assert body["service_tier"] == "flex"
    assert body["reasoning_effort"] == "low"
    messages = body["messages"]
    assert isinstance(messages, list)
    assert messages[0]["role"] == "developer"


@pytest.mark.behaviour("lemon_ai.3")
def test_messages_are_sent_oldest_first() -> None:
    context = Context().add_user_message("one")
    context = context.add_assistant_message(answer(TextContent(text="two"), call("c")))
    context = context.add_tool_result(result("c", TextContent(text="three")))
    context = context.add_user_message("four").add_assistant_message(
        answer(TextContent(text="five"))
    )
    context = context.add_user_message("six")
    model = chat_model()
    raw = build_body(model, model.base_url, context, StreamOptions(), ToolCache())
    assert raw is not None
    contents = [m["content"] for m in orjson.loads(raw)["messages"]]
    assert contents == ["one", "two", "three", "four", "five", "six"]


def test_equal_requests_are_equal_bytes() -> None:
    model, tools = chat_model(), (LS, Tool("b", "", {"type": "object", "z": 1, "a": 2}))
    context = Context(system_prompt="x", messages=HELLO.messages, tools=tools)
    cache = ToolCache()
    first, again = (
        build_body(model, model.base_url, context, StreamOptions(), cache) for _ in range(2)
    )
    assert (
        first == again == build_body(model, model.base_url, context, StreamOptions(), ToolCache())
    )
    assert first is not None
    assert b'"z":1,"a":2' in first


def test_a_changed_list_of_tools_is_not_taken_from_the_cache() -> None:
    cache, tools = ToolCache(), [LS]
    before = orjson.dumps(cache.serialise(tools, _tool))
    tools.append(Tool("b", "", {}))
    assert orjson.dumps(cache.serialise(tools, _tool)) != before


def test_the_tool_cache_keeps_its_size() -> None:
    cache = ToolCache()
    for _ in range(100):
        cache.serialise((LS,), _tool)
    assert len(cache._entries) <= 32


def test_a_tool_and_its_choice() -> None:
    body = request_body(HELLO.messages, tools=[LS], options=StreamOptions(tool_choice="any"))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "ls",
                "description": "List a folder.",
                "parameters": LS.parameters,
                "strict": False,
            },
        }
    ]
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("ls", {"type": "function", "function": {"name": "ls"}}),
        (None, None),
    ],
)
def test_tool_choices(choice: str | None, expected: object) -> None:
    body = request_body(HELLO.messages, tools=[LS], options=StreamOptions(tool_choice=choice))
    assert body.get("tool_choice") == expected


def test_history_with_calls_and_no_tools_gets_an_empty_list_only_where_it_is_needed() -> None:
    history: list[Message] = [
        UserMessage(content="x"),
        answer(call("c")),
        result("c", TextContent(text="y")),
    ]
    assert "tools" not in request_body(history)
    gateway = chat_model(compat=Compat(requires_tools_with_history=True))
    assert request_body(history, model=gateway)["tools"] == []
    assert "tools" not in request_body(HELLO.messages, model=gateway)


def test_an_answer_with_calls_and_its_results() -> None:
    assert sent(
        UserMessage(content="x"),
        answer(TextContent(text="I look."), call("a", path="."), call("b")),
        result("a", TextContent(text="one"), TextContent(text="two")),
        result("b"),
    ) == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "ls", "arguments": '{"path":"."}'},
                },
                {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "b", "content": "(empty result)"},
    ]


def test_images_of_tool_results_follow_after_the_whole_run() -> None:
    history: list[Message] = [
        UserMessage(content="x"),
        answer(call("a"), call("b")),
        result("a", PNG),
        result("b", TextContent(text="t"), PNG),
        UserMessage(content="and now?"),
    ]
    messages = sent(*history, model=VISION)
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert messages[2]["content"] == "(see attached image)"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert messages[4]["content"][1:] == [image, image]


def test_user_images_and_plain_text_blocks() -> None:
    blocks: list[UserContent] = [TextContent(text="look"), PNG, TextContent(text=" ")]
    (message,) = sent(UserMessage(content=blocks), model=VISION)
    assert message["content"][0] == {"type": "text", "text": "look"}
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]
    plain = UserMessage(content=[TextContent(text="a"), TextContent(text="b")])
    assert sent(plain) == [{"role": "user", "content": "a\nb"}]


def test_thinking_goes_back_under_the_key_it_came_with() -> None:
    history: list[Message] = [
        UserMessage(content="x"),
        answer(
            ThinkingContent(thinking="hm", thinking_signature="reasoning"),
            ThinkingContent(thinking="foreign", thinking_signature="c2lnbmVk"),
            TextContent(text="ok"),
        ),
        UserMessage(content="y"),
    ]
    assert sent(*history)[1] == {
        "role": "assistant",
        "content": "ok",
        "reasoning": "hm",
    }


def test_what_mistral_needs() -> None:
    model = chat_model("https://api.mistral.ai/v1")
    mine = AssistantMessage(
        content=[ThinkingContent(thinking="hm "), TextContent(text="ok"), call("call_1")],
        api=model.api,
        provider=model.provider,
        model=model.id,
    )
    history: list[Message] = [
        UserMessage(content="x"),
        mine,
        result("call_1", TextContent(text="r")),
    ]
    messages = sent(*history, model=model)
    assert messages[1]["content"] == "hm ok"
    wire_id = messages[1]["tool_calls"][0]["id"]
    assert len(wire_id) == 9
    assert wire_id.isalnum()
    assert messages[2] == {
        "role": "tool",
        "tool_call_id": wire_id,
        "content": "r",
        "name": "ls",
    }


def test_a_server_may_need_an_answer_between_result_and_user() -> None:
    model = chat_model(compat=Compat(requires_assistant_after_tool_result=True))
    history: list[Message] = [
        UserMessage(content="x"),
        answer(call("c")),
        result("c", TextContent(text="y")),
        UserMessage(content="z"),
    ]
    messages = sent(*history, model=model)
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]


def test_encrypted_reasoning_goes_back_with_its_call() -> None:
    signed = ToolCall(id="c", name="ls", thought_signature='{"type":"reasoning.encrypted"}')
    history: list[Message] = [
        UserMessage(content="x"),
        answer(signed),
        result("c", TextContent(text="y")),
    ]
    entry = sent(*history)[1]
    assert entry["reasoning_details"] == [{"type": "reasoning.encrypted"}]


def test_temperature_is_left_out_while_the_model_reasons() -> None:
    options = StreamOptions(temperature=0.5)
    assert request_body(HELLO.messages, options=options)["temperature"] == 0.5
    careful = chat_model(
        reasoning=True, reasoning_levels=("none", "low"), sampling="without_reasoning"
    )
    assert "temperature" not in request_body(HELLO.messages, model=careful, options=options)
    off = StreamOptions(temperature=0.5, reasoning=False)
    assert request_body(HELLO.messages, model=careful, options=off)["temperature"] == 0.5
    never = chat_model(sampling="never")
    assert "temperature" not in request_body(HELLO.messages, model=never, options=options)


@pytest.mark.parametrize("choice", ["auto", None])
def test_service_tier_and_store_are_for_those_who_know_them(choice: str | None) -> None:
    """A server nobody has described gets no field that it might refuse."""
    plain = request_body(HELLO.messages, tools=[LS], options=StreamOptions(tool_choice=choice))
    assert not {"store", "service_tier", "reasoning_effort"} & set(plain)


def test_openrouter_routing() -> None:
    routing = {"order": ["a"]}
    model = chat_model("https://openrouter.ai/api/v1", compat=Compat(open_router_routing=routing))
    assert request_body(HELLO.messages, model=model)["provider"] == routing
