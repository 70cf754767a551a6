"""Every wire API: what goes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from lemon_ai import (
    AssistantMessage,
    Client,
    Context,
    ImageContent,
    Message,
    Model,
    ModelError,
    StreamOptions,
    TextContent,
    ThinkingContent,
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.testing import FakeProviderServer, FakeToolCall, Turn
from lemon_ai.tests.adapters.cases import CASES, ApiCase
from lemon_ai.tests.support import HELLO, LS, TOOL_CONTEXT
from lemon_ai.transform import MISSING_RESULT_TEXT

pytestmark = pytest.mark.anyio

OPTIONS = StreamOptions(api_key="sk-x")
PNG = ImageContent(data="aGk=", mime_type="image/png")
SIGNATURE = "c2lnbmF0dXJl"
STORED = ToolCall(id="call|odd/id:" + "x" * 80, name="ls", arguments={"path": "."})


async def sent(
    client: Client,
    provider: FakeProviderServer,
    model: Model,
    context: Context,
    options: StreamOptions = OPTIONS,
) -> Mapping[str, Any]:
    """The parsed body of the request that this call makes."""
    provider.enqueue(Turn(text="ok"))
    await client.complete(model, context, options)
    return provider.requests[-1].body


async def conversation(
    client: Client, provider: FakeProviderServer, case: ApiCase
) -> list[Message]:
    """Thinking, text, two parallel calls and an image, with an orphaned call behind."""
    turn = Turn(
        thinking="Let me look.",
        thinking_signature=SIGNATURE,
        text="Looking.",
        tool_calls=[FakeToolCall("ls", {"path": "a"}, id="c:1"), FakeToolCall("ls", id="c:2")],
    )
    provider.enqueue(turn)
    ask = UserMessage(content=[TextContent(text="What is this?"), PNG])
    answer = await client.complete(
        case.model(provider), Context(messages=[ask], tools=(LS,)), OPTIONS
    )
    first, second = (block for block in answer.content if isinstance(block, ToolCall))
    orphan = answer.model_copy(update={"content": [STORED]})
    return [
        ask,
        answer,
        ToolResultMessage(
            tool_call_id=first.id, tool_name="ls", content=[TextContent(text="one"), PNG]
        ),
        ToolResultMessage(
            tool_call_id=second.id, tool_name="ls", content=[TextContent(text="two")]
        ),
        orphan,
        UserMessage(content="Go on."),
    ]


@pytest.mark.behaviour("lemon_ai.2")
@pytest.mark.parametrize("source", CASES, ids=[case.api for case in CASES])
async def test_a_conversation_goes_on_with_any_other_api(
    provider: FakeProviderServer, client: Client, case: ApiCase, source: ApiCase
) -> None:
    history = await conversation(client, provider, source)
    context = Context(system_prompt="Be Lemon.", messages=history, tools=(LS,))
    target = case.model(provider, id="another-model")
    body = await sent(client, provider, target, context)
    raw = provider.requests[-1].raw_body.decode()
    assert SIGNATURE not in raw
    assert "".join(case.texts(body)).startswith("What is this?Let me look.Looking.")
    calls, results = case.calls(body), case.results(body)
    assert len(calls) == len(set(calls)) == 3
    assert [call_id for call_id, _ in results] == calls
    assert [text for _, text in results] == ["one", "two", MISSING_RESULT_TEXT]
    assert all(re.fullmatch(case.legal_id, call_id) for call_id in calls)
    assert PNG.data in raw
    assert "Go on." in case.texts(body)

    blind = case.model(provider, id="another-model", input=("text",))
    await sent(client, provider, blind, context)
    assert PNG.data not in provider.requests[-1].raw_body.decode()


@pytest.mark.behaviour("lemon_ai.104")
async def test_the_same_model_gets_its_thinking_back(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    """A, then B, then A again."""
    history = await conversation(client, provider, case)
    mine = case.model(provider)
    await sent(client, provider, mine, Context(messages=history, tools=(LS,)))
    raw = provider.requests[-1].raw_body.decode()
    assert "Let me look." in raw
    if case.thinking_signature(Turn(thinking_signature=SIGNATURE)) != "reasoning_content":
        assert SIGNATURE in raw

    other = case.model(provider, id="another-model")
    provider.enqueue(Turn(thinking="Hm.", thinking_signature="b3RoZXI=", text="B."))
    told = await client.complete(other, Context(messages=history, tools=(LS,)), OPTIONS)
    history = [*history, told, UserMessage(content="And again?")]
    body = await sent(client, provider, mine, Context(messages=history, tools=(LS,)))
    again = provider.requests[-1].raw_body.decode()
    assert "b3RoZXI=" not in again
    assert (SIGNATURE in raw) == (SIGNATURE in again)
    assert [text for text in case.texts(body) if text in ("Hm.", "B.", "And again?")]


@pytest.mark.behaviour("lemon_ai.3")
async def test_messages_are_sent_oldest_first(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    answer = AssistantMessage(content=[TextContent(text="two"), ToolCall(id="c", name="ls")])
    result = ToolResultMessage(
        tool_call_id="c", tool_name="ls", content=[TextContent(text="three")]
    )
    context = Context().add_user_message("one").add_assistant_message(answer)
    context = context.add_tool_result(result).add_user_message("four")
    body = await sent(client, provider, case.model(provider), context)
    assert case.texts(body) == ["one", "two", "three", "four"]


@pytest.mark.behaviour("lemon_ai.8")
async def test_equal_requests_are_equal_bytes(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    tools = (LS, Tool("b", "", {"type": "object", "z": 1, "a": 2}))
    history = [*HELLO.messages, AssistantMessage(content=[TextContent(text="x")], timestamp=1)]
    context = Context(system_prompt="x", messages=[*history, *HELLO.messages], tools=tools)
    for _ in range(2):
        await sent(client, provider, case.model(provider), context)
    async with Client(env={}) as fresh:
        await sent(fresh, provider, case.model(provider), context)
    first, second, third = (request.raw_body for request in provider.requests)
    assert first == second == third
    assert b'"z":1,"a":2' in first


@pytest.mark.behaviour("lemon_ai.16")
@pytest.mark.parametrize("content", ["", "  \n"])
async def test_nothing_left_to_send_sends_nothing(
    provider: FakeProviderServer, client: Client, case: ApiCase, content: str
) -> None:
    failed = AssistantMessage(content=[TextContent(text="half")], stop_reason="error")
    context = Context(system_prompt="x", messages=[UserMessage(content=content), failed])
    with pytest.raises(ModelError, match="no message is left"):
        await client.complete(case.model(provider), context, OPTIONS)
    assert provider.requests == []


ODD: Sequence[Message] = (
    UserMessage(content=[]),
    ToolResultMessage(tool_call_id="lost", tool_name="ls", content=[TextContent(text="lost")]),
    AssistantMessage(),
    AssistantMessage(content=[TextContent(text="  ")]),
    AssistantMessage(content=[ThinkingContent(thinking="unsigned")]),
    UserMessage(content=[TextContent(text="kept"), TextContent(text=" ")]),
    AssistantMessage(
        content=[TextContent(text=" "), ToolCall(id="d", name="ls"), ToolCall(id="d", name="ls")]
    ),
    ToolResultMessage(tool_call_id="d", tool_name="ls", content=[TextContent(text="  ")]),
    ToolResultMessage(tool_call_id="d", tool_name="ls", content=[TextContent(text="twice")]),
    UserMessage(content="end"),
)


@pytest.mark.behaviour("lemon_ai.103")
async def test_an_odd_stored_history_is_repaired(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    """Nothing empty goes out, and each call has exactly one result."""
    body = await sent(client, provider, case.model(provider), Context(messages=ODD, tools=(LS,)))
    assert len(case.calls(body)) == 1
    assert case.results(body) == [(case.calls(body)[0], "(empty result)")]
    texts = case.texts(body)
    assert all(text.strip() for text in texts)
    assert [text for text in texts if text not in ("unsigned", "(empty result)")] == ["kept", "end"]


@pytest.mark.behaviour("lemon_ai.23")
async def test_lone_surrogates_and_nul_do_not_break_a_request(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    odd = "a\ud83d\x00b 🍋"
    history: list[Message] = [
        UserMessage(content=odd),
        AssistantMessage(
            content=[TextContent(text=odd), ToolCall(id="c", name="ls", arguments={odd: odd})]
        ),
        ToolResultMessage(tool_call_id="c", tool_name="ls", content=[TextContent(text=odd)]),
    ]
    tools = (Tool("ls", odd, LS.parameters),)
    context = Context(system_prompt=odd, messages=history, tools=tools)
    body = await sent(client, provider, case.model(provider), context)
    assert case.texts(body) == ["a\ufffd\x00b 🍋"] * 3


async def test_the_key_and_other_headers(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    model = case.model(provider, headers={"X-Team": "model", "X-Row": "1"})
    options = StreamOptions(api_key="sk-x", headers={"x-team": "call"})
    await sent(client, provider, model, HELLO, options)
    headers = provider.requests[-1].headers
    assert case.key.items() <= headers.items()
    assert (headers["x-team"], headers["x-row"]) == ("call", "1")
    assert headers["content-type"] == "application/json"


KEYS = (
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)


@pytest.mark.behaviour("lemon_ai.17")
async def test_no_key_of_the_environment_reaches_a_server_it_was_not_set_for(
    provider: FakeProviderServer, case: ApiCase
) -> None:
    async with Client(env=dict.fromkeys(KEYS, "sk-canary")) as client:
        provider.enqueue(Turn(text="ok"))
        try:
            await client.complete(case.model(provider), HELLO)
        except ModelError as exc:
            assert case.missing_key is not None
            assert case.missing_key in str(exc)  # noqa: PT017
    sent_headers = [dict(request.headers) for request in provider.requests]
    assert "sk-canary" not in str(sent_headers)


async def test_a_model_without_tools_gets_no_schema(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    options = StreamOptions(api_key="sk-x", tool_choice="auto")
    without = await sent(client, provider, case.model(provider, tools=False), TOOL_CONTEXT, options)
    assert "tool" not in str(sorted(without))
    body = await sent(client, provider, case.model(provider), TOOL_CONTEXT, options)
    assert "List a folder." in str(body)


async def test_many_streams_at_once_stay_apart(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    names = [f"n{number}" for number in range(12)]
    provider.enqueue(*(Turn(text=f"answer to {n}", when=f"<{n}>") for n in reversed(names)))
    answers: dict[str, str] = {}

    async def ask(name: str) -> None:
        context = Context(messages=[UserMessage(content=f"<{name}>")])
        async with client.stream(case.model(provider), context, OPTIONS) as stream:
            answers[name] = await stream.collect_text()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
    assert answers == {name: f"answer to {name}" for name in names}
