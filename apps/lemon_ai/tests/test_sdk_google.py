"""Google's own SDK against the fake, for AI Studio and for Vertex, and our requests against its
types: so that fake and adapter cannot share one misreading."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from lemon_ai import (
    AssistantMessage,
    Catalog,
    Client,
    Context,
    Message,
    Model,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.testing import FakeProviderServer, FakeToolCall, FakeUsage, HttpError, Turn
from lemon_ai.tests.history import FULL_HISTORY, PNG
from lemon_ai.tests.sdk import FULL, documents
from lemon_ai.tests.support import LS

pytestmark = pytest.mark.anyio

APIS = ("google_generative_ai", "google_vertex")
MODEL = "gemini-3.8-flash"


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer(api_key="sk-x") as server:
        yield server


@pytest.fixture(params=APIS)
async def sdk(
    request: pytest.FixtureRequest, provider: FakeProviderServer
) -> AsyncIterator[genai.Client]:
    """The vendor's client, pointed at the fake."""
    async with connected(provider, request.param) as client:
        yield client


@asynccontextmanager
async def connected(
    provider: FakeProviderServer, api: str, key: str = "sk-x"
) -> AsyncIterator[genai.Client]:
    # Its own choice, aiohttp, warns of the way it is used.
    async with httpx2.AsyncClient(trust_env=False) as http:
        options = types.HttpOptions(
            base_url=provider.origin,
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_async_client=http,
        )
        client = _client(api, key, options)
        try:
            yield client
        finally:
            client.close()


def _client(api: str, key: str, options: types.HttpOptions) -> genai.Client:
    if api == "google_generative_ai":
        return genai.Client(enterprise=False, api_key=key, http_options=options)
    return genai.Client(
        enterprise=True,
        project="fake-project",
        location="us-central1",
        credentials=Credentials(token=key),  # type: ignore[no-untyped-call]  # theirs
        http_options=options,
    )


async def answer(
    sdk: genai.Client, contents: Any = "Say hello"
) -> list[types.GenerateContentResponse]:
    stream = await sdk.aio.models.generate_content_stream(model=MODEL, contents=contents)
    return [chunk async for chunk in stream]


def parts_of(chunks: list[types.GenerateContentResponse]) -> list[types.Part]:
    found = [c.candidates[0].content for c in chunks if c.candidates]
    return [part for content in found if content for part in content.parts or []]


async def test_an_answer(provider: FakeProviderServer, sdk: genai.Client) -> None:
    # The service sends no keep-alives: this SDK takes every line for JSON.
    provider.enqueue(replace(FULL, pings=False))
    chunks = await answer(sdk)
    parts = parts_of(chunks)
    assert "".join(p.text or "" for p in parts if p.thought) == "The user wants 日本."
    assert "".join(p.text or "" for p in parts if not p.thought) == "Hällo wörld 🍋"
    calls = [part.function_call for part in parts if part.function_call]
    assert [(c.id, c.name, c.args) for c in calls] == [
        ("call_a", "ls", {"path": "a.py"}),
        ("call_b", "ls", {"path": "b"}),
    ]
    assert [p.thought_signature for p in parts if p.thought_signature] == [b"signature"]
    last = chunks[-1]
    assert last.candidates
    assert last.candidates[0].finish_reason == types.FinishReason.STOP
    usage = last.usage_metadata
    assert usage is not None
    # 60 fresh, 7 that others would call written, 40 cached.
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (107, 40)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (15, 5)
    assert usage.total_token_count == 127


@pytest.mark.parametrize(
    ("stop", "reason"), [("length", "MAX_TOKENS"), ("filtered", "SAFETY"), ("stop", "STOP")]
)
async def test_why_an_answer_ends(
    provider: FakeProviderServer, sdk: genai.Client, stop: Any, reason: str
) -> None:
    provider.enqueue(Turn(text="x", stop=stop, usage=FakeUsage(input=3, output=1)))
    last = (await answer(sdk))[-1]
    assert last.candidates
    assert last.candidates[0].finish_reason == types.FinishReason(reason)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, errors.ClientError),
        (403, errors.ClientError),
        (429, errors.ClientError),
        (500, errors.ServerError),
        (503, errors.ServerError),
    ],
)
async def test_refusals(
    provider: FakeProviderServer,
    sdk: genai.Client,
    status: int,
    error: type[errors.APIError],
) -> None:
    provider.enqueue(Turn(http_error=HttpError(status, message="no such thing")))
    with pytest.raises(error, match="no such thing") as caught:
        await answer(sdk)
    assert caught.value.code == status


async def test_an_error_inside_a_stream(provider: FakeProviderServer, sdk: genai.Client) -> None:
    provider.enqueue(Turn(text="half", stream_error={"message": "busy", "code": 503}))
    with pytest.raises(errors.APIError, match="busy"):
        await answer(sdk)


@pytest.mark.parametrize("api", APIS)
async def test_a_wrong_key_is_refused(provider: FakeProviderServer, api: str) -> None:
    async with connected(provider, api, "sk-wrong") as client:
        with pytest.raises(errors.ClientError, match="Incorrect API key"):
            await answer(client)


@pytest.mark.parametrize(
    "turn",
    [FULL, Turn(thinking="x", thinking_signature="c2ln", text="y"), Turn(stop="filtered")],
    ids=["full", "text", "refused"],
)
def test_each_event_of_the_fake_is_whole_by_the_vendors_types(turn: Turn) -> None:
    for document in documents("google_generative_ai", turn):
        types.GenerateContentResponse.model_validate_json(json.dumps(document))


# -- our requests --------------------------------------------------------------------------------


class VendorBody(BaseModel):
    """The body of a request in the vendor's types, which refuse unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")

    system_instruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    tool_config: types.ToolConfig | None = None
    generation_config: types.GenerationConfig | None = None
    contents: list[types.Content]


def in_vendors_form(body: Any) -> object:
    return VendorBody.model_validate_json(json.dumps(body)).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


@pytest.mark.parametrize("model_id", [MODEL, "gemini-2.5-flash"])
@pytest.mark.parametrize("api", APIS)
async def test_our_request_is_in_the_vendors_form(
    provider: FakeProviderServer, client: Client, api: str, model_id: str
) -> None:
    model = ours(provider, api, model_id)
    options = StreamOptions(
        api_key="sk-x", reasoning="high", tool_choice="ls", temperature=0.5, max_tokens=9
    )
    provider.enqueue(FULL, Turn(text="ok"))
    context = Context(system_prompt="Be Lemon.", messages=FULL_HISTORY, tools=(LS,))
    told = await client.complete(model, context, options)
    calls = [block for block in told.content if isinstance(block, ToolCall)]
    results = [
        ToolResultMessage(
            tool_call_id=call.id, tool_name="ls", content=[TextContent(text="one"), PNG]
        )
        for call in calls
    ]
    context = Context(
        system_prompt="Be Lemon.", messages=[*FULL_HISTORY, told, *results], tools=(LS,)
    )
    await client.complete(model, context, options)
    body = provider.requests[-1].body
    assert in_vendors_form(body) == _upper_types(body)


def _upper_types(value: Any, key: str = "") -> Any:
    """The vendor writes the types of a schema, and levels, in capitals."""
    if isinstance(value, dict):
        return {name: _upper_types(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_upper_types(item) for item in value]
    return value.upper() if key == "type" else value


def ours(provider: FakeProviderServer, api: str, model_id: str) -> Model:
    name = "google" if api == "google_generative_ai" else "google_vertex"
    model = Catalog().get_model(name, model_id)
    assert model is not None
    return model.model_copy(update={"base_url": provider.base_url_of(api)})


@pytest.mark.parametrize("api", APIS)
async def test_a_turn_goes_back_as_the_vendors_sdk_sends_it(
    provider: FakeProviderServer, client: Client, api: str
) -> None:
    """Thoughts, signatures, calls and results, from one answer of the fake."""
    is_studio = api == "google_generative_ai"
    turn = Turn(
        thinking=["Hm."],
        text=["I look."],
        thinking_signature="c2lnbmF0dXJl",
        tool_calls=[FakeToolCall("ls", {"path": "a"}, id="c1" if is_studio else None)],
    )
    provider.enqueue(turn, Turn(text="ok"), turn, Turn(text="ok"))
    async with connected(provider, api) as sdk:
        parts = [part for part in parts_of(await answer(sdk, "Hi")) if part.text != ""]
        call = parts[-1].function_call
        assert call is not None
        response = types.FunctionResponse(id=call.id, name="ls", response={"output": "one"})
        contents = [
            types.Content(role="user", parts=[types.Part(text="Hi")]),
            types.Content(role="model", parts=parts),
            types.Content(role="user", parts=[types.Part(function_response=response)]),
        ]
        await answer(sdk, contents)
        theirs = provider.requests[-1].body["contents"]
    options = StreamOptions(api_key="sk-x")
    ask: list[Message] = [UserMessage(content="Hi")]
    told = await client.complete(ours(provider, api, MODEL), Context(messages=ask), options)
    assert isinstance(told, AssistantMessage)
    assert isinstance(told.content[0], ThinkingContent)
    mine = told.content[-1]
    assert isinstance(mine, ToolCall)
    result = ToolResultMessage(
        tool_call_id=mine.id, tool_name="ls", content=[TextContent(text="one")]
    )
    context = Context(messages=[*ask, told, result])
    await client.complete(ours(provider, api, MODEL), context, options)
    assert provider.requests[-1].body["contents"] == theirs
