"""OpenAI's own SDK against the fake, and our requests against its types: so that fake and adapter
cannot share one misreading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from lemon_ai import Client, Context, Model, StreamOptions, UserMessage, get_tool_calls
from lemon_ai.testing import FakeProviderServer, HttpError, Turn
from lemon_ai.tests.history import FULL_HISTORY
from lemon_ai.tests.sdk import FULL, documents, in_vendors_form
from lemon_ai.tests.support import LS, chat_model

pytestmark = pytest.mark.anyio

ASK: Sequence[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say hello"}]
RESPONSES = TypeAdapter[object](ResponseStreamEvent)


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer(api_key="sk-x") as server:
        yield server


@pytest.fixture
async def sdk(provider: FakeProviderServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key="sk-x",
        base_url=provider.base_url_of("openai_completions"),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        yield client


async def chunks(sdk: openai.AsyncOpenAI) -> list[ChatCompletionChunk]:
    stream = await sdk.chat.completions.create(
        model="fake-model",
        messages=ASK,
        stream=True,
        stream_options={"include_usage": True},
    )
    return [chunk async for chunk in stream]


async def test_chat_completions(provider: FakeProviderServer, sdk: openai.AsyncOpenAI) -> None:
    provider.enqueue(FULL)
    found = await chunks(sdk)
    deltas = [chunk.choices[0].delta for chunk in found if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Hällo wörld 🍋"
    thinking = [(delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas]
    assert "".join(thinking) == "The user wants 日本."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.id for call in calls if call.id] == ["call_a", "call_b"]
    arguments = {
        index: "".join(
            call.function.arguments or "" for call in calls if call.index == index and call.function
        )
        for index in (0, 1)
    }
    assert arguments == {0: '{"path":"a.py"}', 1: '{"path":"b"}'}
    reasons = [chunk.choices[0].finish_reason for chunk in found if chunk.choices]
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    usage = found[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (107, 20, 127)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 40
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 5


async def test_responses(provider: FakeProviderServer, sdk: openai.AsyncOpenAI) -> None:
    provider.enqueue(FULL)
    async with sdk.responses.stream(model="fake-model", input="Say hello") as stream:
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert response.output_text == "Hällo wörld 🍋"
    reasoning, message, first, second = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.summary[0].text == "The user wants 日本."
    assert reasoning.encrypted_content == "c2lnbmF0dXJl"
    assert message.type == "message"
    assert first.type == second.type == "function_call"
    assert (first.call_id, first.name, first.arguments) == ("call_a", "ls", '{"path":"a.py"}')
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (107, 20, 127)
    assert usage.input_tokens_details.cached_tokens == 40
    assert usage.output_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
async def test_refusals(
    provider: FakeProviderServer,
    sdk: openai.AsyncOpenAI,
    status: int,
    error: type[openai.APIStatusError],
) -> None:
    refusal = Turn(http_error=HttpError(status, message="no such thing"))
    provider.enqueue(refusal, refusal)
    with pytest.raises(error, match="no such thing"):
        await chunks(sdk)
    with pytest.raises(error, match="no such thing"):
        await sdk.responses.create(model="fake-model", input="x", stream=True)


async def test_a_wrong_key_is_refused(provider: FakeProviderServer) -> None:
    async with openai.AsyncOpenAI(
        api_key="sk-wrong",
        base_url=provider.base_url_of("openai_responses"),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as sdk:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await sdk.models.list()
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await sdk.responses.create(model="fake-model", input="x")


async def test_errors_inside_a_stream(
    provider: FakeProviderServer, sdk: openai.AsyncOpenAI
) -> None:
    broken = Turn(text="half", stream_error={"message": "gave up", "code": 500})
    provider.enqueue(broken, broken)
    with pytest.raises(openai.APIError, match="gave up"):
        await chunks(sdk)
    stream = await sdk.responses.create(model="fake-model", input="x", stream=True)
    found = [event async for event in stream]
    last = found[-1]
    assert last.type == "error"
    assert (last.code, last.message) == ("server_error", "gave up")


async def test_azure(provider: FakeProviderServer) -> None:
    provider.enqueue(FULL)
    async with (
        openai.AsyncAzureOpenAI(
            api_key="sk-x",
            api_version="v1",
            base_url=provider.base_url_of("azure_openai_responses"),
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as sdk,
        sdk.responses.stream(model="deployed", input="Say hello") as stream,
    ):
        response = await stream.get_final_response()
    assert response.output_text == "Hällo wörld 🍋"
    (request,) = provider.requests
    assert request.headers["api-key"] == "sk-x"
    assert request.query["api-version"] == "v1"


TURNS = {
    "full": FULL,
    "length": Turn(text="x", stop="length"),
    "filtered": Turn(text="x", stop="filtered"),
    "failed": Turn(text="x", finish_reason="failed"),
    "error": Turn(text="x", stream_error={"message": "no", "code": 429}),
}


@pytest.mark.parametrize("name", TURNS)
def test_each_event_of_the_fake_is_whole_by_the_vendors_types(name: str) -> None:
    for document in documents("openai_responses", TURNS[name]):
        RESPONSES.validate_python(document)
    if name not in ("error", "failed"):
        for document in documents("openai_completions", TURNS[name]):
            ChatCompletionChunk.model_validate(document)


async def test_our_chat_request_is_in_the_vendors_form(
    provider: FakeProviderServer, client: Client
) -> None:
    base_url = provider.base_url_of("openai_completions")
    model = chat_model(base_url, reasoning=True, input=("text", "image"))
    body = await _sent(provider, client, model)
    for message in body["messages"]:
        message.pop("reasoning_content", None)  # a habit of other servers, whose model this is
    assert in_vendors_form(CompletionCreateParamsStreaming, body) == body


@pytest.mark.parametrize("api", ["openai_responses", "azure_openai_responses"])
async def test_our_responses_request_is_in_the_vendors_form(
    provider: FakeProviderServer, client: Client, api: str
) -> None:
    model = chat_model(provider.base_url_of(api), api=api, reasoning=True, input=("text", "image"))
    body = await _sent(provider, client, model)
    assert in_vendors_form(ResponseCreateParamsStreaming, body) == body


async def _sent(provider: FakeProviderServer, client: Client, model: Model) -> dict[str, Any]:
    """The body of a call with everything in it, thinking of this very model included."""
    options = StreamOptions(
        api_key="sk-x",
        reasoning="high",
        max_tokens=1_000,
        tool_choice="auto",
        session_id="session",
        service_tier="flex",
    )
    provider.enqueue(FULL, Turn(text="ok"))
    context = Context(system_prompt="Be Lemon.", messages=FULL_HISTORY, tools=(LS,))
    answer = await client.complete(model, context, options)
    assert get_tool_calls(answer)
    history = [*FULL_HISTORY, answer, UserMessage(content="Go on.")]
    context = Context(system_prompt="Be Lemon.", messages=history, tools=(LS,))
    await client.complete(model, context, options)
    return dict(provider.requests[-1].body)
