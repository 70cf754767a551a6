"""Anthropic's own SDK against the fake, and our requests against its types: so that fake and
adapter cannot share one misreading."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as BetaParams
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from pydantic import TypeAdapter

from lemon_ai import (
    AssistantMessage,
    Catalog,
    Client,
    Compat,
    Context,
    StreamOptions,
    ThinkingLevel,
    UserMessage,
)
from lemon_ai.testing import FakeProviderServer, HttpError, Turn
from lemon_ai.tests.history import FULL_HISTORY
from lemon_ai.tests.sdk import FULL, documents, in_vendors_form
from lemon_ai.tests.support import LS

pytestmark = pytest.mark.anyio

EVENTS = TypeAdapter[object](RawMessageStreamEvent)


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer(api_key="sk-x") as server:
        yield server


@pytest.fixture
async def sdk(provider: FakeProviderServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        api_key="sk-x",
        base_url=provider.origin,
        max_retries=0,
        http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        yield client


async def message(sdk: anthropic.AsyncAnthropic) -> anthropic.types.Message:
    async with sdk.messages.stream(
        model="fake-model", max_tokens=9, messages=[{"role": "user", "content": "Say hello"}]
    ) as stream:
        return await stream.get_final_message()


async def test_messages(provider: FakeProviderServer, sdk: anthropic.AsyncAnthropic) -> None:
    provider.enqueue(FULL)
    found = await message(sdk)
    thinking, text, first, second = found.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, thinking.signature) == ("The user wants 日本.", "c2lnbmF0dXJl")
    assert text.type == "text"
    assert text.text == "Hällo wörld 🍋"
    assert first.type == second.type == "tool_use"
    assert (first.id, first.name, first.input) == ("call_a", "ls", {"path": "a.py"})
    assert second.input == {"path": "b"}
    assert found.stop_reason == "tool_use"
    assert (found.usage.input_tokens, found.usage.output_tokens) == (60, 20)
    assert found.usage.cache_read_input_tokens == 40
    assert found.usage.cache_creation_input_tokens == 7


async def test_redacted_thinking_and_a_refusal(
    provider: FakeProviderServer, sdk: anthropic.AsyncAnthropic
) -> None:
    provider.enqueue(Turn(redacted_thinking="b3BhcXVl", text="x", stop="filtered"))
    found = await message(sdk)
    assert found.content[0].type == "redacted_thinking"
    assert found.content[0].data == "b3BhcXVl"
    assert found.stop_reason == "refusal"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
async def test_refusals(
    provider: FakeProviderServer,
    sdk: anthropic.AsyncAnthropic,
    status: int,
    error: type[anthropic.APIStatusError],
) -> None:
    provider.enqueue(Turn(http_error=HttpError(status, message="no such thing")))
    with pytest.raises(error, match="no such thing"):
        await message(sdk)


async def test_an_error_inside_a_stream(
    provider: FakeProviderServer, sdk: anthropic.AsyncAnthropic
) -> None:
    provider.enqueue(Turn(text="half", stream_error={"message": "busy", "code": 529}))
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        await message(sdk)


async def test_a_wrong_key_is_refused(provider: FakeProviderServer) -> None:
    async with anthropic.AsyncAnthropic(
        api_key="sk-wrong",
        base_url=provider.origin,
        max_retries=0,
        http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
    ) as sdk:
        with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
            await message(sdk)


@pytest.mark.parametrize(
    "turn",
    [FULL, Turn(redacted_thinking="b3BhcXVl", text="x", stop="length"), Turn(stop="filtered")],
    ids=["full", "redacted", "refused"],
)
def test_each_event_of_the_fake_is_whole_by_the_vendors_types(turn: Turn) -> None:
    for document in documents("anthropic_messages", turn):
        if document["type"] != "ping":
            EVENTS.validate_python(document)


STYLES: dict[str, tuple[Compat, ThinkingLevel | Literal[False]]] = {
    "budget": (Compat(thinking_style="budget"), "high"),
    "adaptive": (Compat(thinking_style="adaptive", thinking_display="summarized"), "xhigh"),
    "bound": (Compat(thinking_style="adaptive", thinking_bound_to_history=True), "xhigh"),
    "disabled": (Compat(thinking_style="adaptive", thinking_when_off="disabled"), False),
    "between_tools": (Compat(thinking_style="adaptive", thinking_when_off="between_tools"), False),
    "low_effort": (Compat(thinking_style="adaptive", thinking_when_off="low_effort"), False),
}


@pytest.mark.parametrize("style", STYLES)
async def test_our_request_is_in_the_vendors_form(
    provider: FakeProviderServer, client: Client, style: str
) -> None:
    compat, level = STYLES[style]
    model = Catalog().endpoint_model("anthropic", "claude-haiku-4-5", provider.origin)
    model = model.model_copy(update={"compat": compat})
    options = StreamOptions(api_key="sk-x", reasoning=level, tool_choice="any", temperature=0.5)
    provider.enqueue(FULL, Turn(text="ok"))
    context = Context(system_prompt="Be Lemon.", messages=FULL_HISTORY, tools=(LS,))
    answer = await client.complete(model, context, options)
    redacted = answer.content[0].model_copy(update={"redacted_data": "b3BhcXVl"})
    second = answer.model_copy(update={"content": [redacted, *answer.content[1:2]]})
    history = [*FULL_HISTORY, answer, UserMessage(content="Go on."), second]
    assert isinstance(second, AssistantMessage)
    history.append(UserMessage(content="More."))
    context = Context(system_prompt="Be Lemon.", messages=history, tools=(LS,))
    await client.complete(model, context, options)
    # The types are those of the newest models, which refuse a temperature.
    body = {k: v for k, v in provider.requests[-1].body.items() if k != "temperature"}
    form = BetaParams if style == "bound" else MessageCreateParamsStreaming
    assert in_vendors_form(form, body) == body
