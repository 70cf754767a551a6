"""Gemini's answers: what is particular about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from lemon_ai import (
    Client,
    StreamDone,
    StreamError,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from lemon_ai.adapters.google_stream import GoogleStreamParser
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.testing import FakeChatServer, HttpError, Turn
from lemon_ai.tests.cloud_models import gemini
from lemon_ai.tests.support import HELLO, all_events, final_message

pytestmark = pytest.mark.anyio

Json = Mapping[str, Any]
MODEL = gemini()


def parsed(*documents: Json, timestamp: int = 1_764_000_000_000) -> TerminalEvent:
    """The end of an answer made of these response objects."""
    parser = GoogleStreamParser(PartialMessage(MODEL, timestamp))
    for document in documents:
        if parser.feed(SSEEvent(orjson.dumps(document))):
            break
    return parser.finish(None)


def parts(*found: Json, reason: str | None = "STOP", **more: Any) -> Json:
    candidate = {"content": {"role": "model", "parts": list(found)}, "finishReason": reason}
    return {"candidates": [candidate], **more}


def test_only_a_true_thought_is_thinking() -> None:
    terminal = parsed(
        parts({"text": "a", "thought": True}, reason=None),
        parts({"text": "b", "thought": False}, {"text": "c"}),
    )
    assert terminal.message.content == [ThinkingContent(thinking="a"), TextContent(text="bc")]


def test_a_signature_is_kept_from_the_first_delta_that_carries_it() -> None:
    terminal = parsed(
        parts({"text": "t", "thought": True, "thoughtSignature": "dA=="}, reason=None),
        parts({"text": "a"}, reason=None),
        parts({"text": "b", "thoughtSignature": "Zmlyc3Q="}, reason=None),
        parts({"text": "", "thoughtSignature": "c2Vjb25k"}),
    )
    assert terminal.message.content == [
        ThinkingContent(thinking="t", thinking_signature="dA=="),
        TextContent(text="ab", text_signature="Zmlyc3Q="),
    ]


def test_a_signature_may_come_alone_at_the_end() -> None:
    terminal = parsed(
        parts({"text": "a"}, reason=None), parts({"text": "", "thoughtSignature": "x"})
    )
    assert terminal.message.content == [TextContent(text="a", text_signature="x")]
    early = parsed(parts({"text": "", "thoughtSignature": "x"}), parts({"text": "a"}))
    assert early.message.content == [TextContent(text="a")]


def test_calls_arrive_whole_and_get_ids_where_they_have_none() -> None:
    terminal = parsed(
        parts(
            {"functionCall": {"name": "ls", "args": {"path": "a"}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "ls"}},
            {"functionCall": {"id": "own", "name": " "}},
            {"functionCall": {"id": "own", "name": "cat", "args": {}}},
        )
    )
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == "tool_use"
    assert terminal.message.content == [
        ToolCall(
            id="ls_1764000000000_1",
            name="ls",
            arguments={"path": "a"},
            thought_signature="c2ln",
        ),
        ToolCall(id="ls_1764000000000_2", name="ls"),
        ToolCall(id="own", name="unknown_tool"),
        ToolCall(id="own_2", name="cat"),
    ]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("STOP", "stop"), ("MAX_TOKENS", "length")],
)
def test_reasons_of_a_whole_answer(reason: str, expected: str) -> None:
    assert parsed(parts({"text": "x"}, reason=reason)).message.stop_reason == expected


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        *((word, "client") for word in ("SAFETY", "RECITATION", "BLOCKLIST", "SPII", "NEW_REASON")),
        *((word, "transient") for word in ("MALFORMED_FUNCTION_CALL", "OTHER")),
    ],
)
def test_any_other_reason_is_an_error(reason: str, category: str) -> None:
    terminal = parsed(parts({"text": "x"}, {"functionCall": {"name": "ls"}}, reason=reason))
    assert isinstance(terminal, StreamError)
    assert terminal.message.error is not None
    assert terminal.message.error.category == category
    assert reason in terminal.message.error.message
    assert terminal.message.content == [TextContent(text="x")]


def test_a_blocked_prompt() -> None:
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"}
    terminal = parsed({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}})
    assert isinstance(terminal, StreamError)
    assert terminal.message.error is not None
    assert terminal.message.error.code == "content_filter"
    assert "(PROHIBITED_CONTENT: no)" in terminal.message.error.message
    assert terminal.message.usage is not None
    assert terminal.message.usage.input == 4


@pytest.mark.behaviour("lemon_ai.6")
def test_the_last_usage_counts() -> None:
    first = {"promptTokenCount": 100, "candidatesTokenCount": 1}
    last = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 15,
        "thoughtsTokenCount": 5,
    }
    terminal = parsed(
        parts({"text": "x"}, reason=None, usageMetadata=first),
        parts({"text": "y"}, usageMetadata=last),
    )
    usage = terminal.message.usage
    assert usage is not None
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write) == (60, 20, 40, 0)


def test_odd_documents_are_skipped() -> None:
    odd: list[Any] = [[], "x", {"candidates": "x"}, {"candidates": [None]}, {"usageMetadata": []}]
    terminal = parsed(
        *odd,
        {"candidates": [{"content": {"parts": [None, {"inlineData": {}}]}}]},
        parts({"text": "x"}),
    )
    assert terminal.message.content == [TextContent(text="x")]


async def test_a_wrong_key_comes_as_a_400(server: FakeChatServer, client: Client) -> None:
    detail = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
    error = {"code": 400, "message": "API key not valid.", "details": [detail]}
    server.enqueue(Turn(http_error=HttpError(400, {"error": error})))
    model = MODEL.model_copy(update={"base_url": server.base_url_of("google_generative_ai")})
    events = await all_events(client, model, HELLO, StreamOptions(api_key="sk-x"))
    found = final_message(events).error
    assert found is not None
    assert (found.category, found.code) == ("auth", "API_KEY_INVALID")


async def test_a_prompt_that_is_too_long(server: FakeChatServer, client: Client) -> None:
    text = "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."
    server.enqueue(Turn(http_error=HttpError(400, message=text)))
    model = MODEL.model_copy(update={"base_url": server.base_url_of("google_generative_ai")})
    events = await all_events(client, model, HELLO, StreamOptions(api_key="sk-x"))
    found = final_message(events).error
    assert found is not None
    assert found.category == "context_length"


async def test_the_delay_that_google_asks_for(server: FakeChatServer, client: Client) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600s"}
    error = {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": [detail]}
    server.enqueue(Turn(http_error=HttpError(429, {"error": error})))
    model = MODEL.model_copy(update={"base_url": server.origin})  # gets its version
    events = await all_events(client, model, HELLO, StreamOptions(api_key="sk-x"))
    found = final_message(events).error
    assert found is not None
    assert found.rate_limit_info is not None
    assert found.rate_limit_info.retry_after_ms == 3_600_000
    request = server.requests[-1]
    assert request.raw_path == "/v1beta/models/gemini:streamGenerateContent?alt=sse"
