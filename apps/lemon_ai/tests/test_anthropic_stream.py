"""Anthropic's Messages API: reading an answer."""

from __future__ import annotations

from typing import Any

import pytest

from lemon_ai import (
    Client,
    Event,
    StreamDone,
    StreamError,
    TextContent,
    ThinkingContent,
    ToolCall,
    get_text,
    get_tool_calls,
)
from lemon_ai.adapters.anthropic_stream import ERROR_STATUS, AnthropicStreamParser
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.testing import FakeProviderServer, HttpError, Turn
from lemon_ai.tests.models import claude
from lemon_ai.tests.support import HELLO, Sleeps, all_events, final_message, kinds
from lemon_ai.text import dump_json

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


def read(*documents: Json) -> tuple[list[Event], TerminalEvent]:
    """The events of an answer made of these documents."""
    partial = PartialMessage(claude(), timestamp=1)
    parser = AnthropicStreamParser(partial)
    for document in documents:
        if parser.feed(SSEEvent(dump_json(document), str(document.get("type", "")))):
            break
    terminal = parser.finish(None)
    return [*partial.drain(), terminal], terminal


def block(index: int, kind: str, **fields: Any) -> Json:
    return {
        "type": "content_block_start",
        "index": index,
        "content_block": {"type": kind, **fields},
    }


def delta(index: int, kind: str, **fields: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, **fields: Any) -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **fields}}


END = {"type": "message_stop"}


def test_signatures_come_in_pieces_and_may_stand_alone() -> None:
    _, terminal = read(
        block(0, "thinking", thinking=""),
        delta(0, "thinking_delta", thinking="hm"),
        delta(0, "signature_delta", signature="c2ln"),
        delta(0, "signature_delta", signature="bmVk"),
        stop(0),
        block(1, "thinking", thinking="", signature=""),
        delta(1, "signature_delta", signature="alone"),
        stop(1),
        block(2, "redacted_thinking", data="opaque"),
        stop(2),
        block(3, "text", text=""),
        delta(3, "text_delta", text="one"),
        stop(3),
        block(4, "text", text="two"),
        stop(4),
        ended("end_turn"),
        END,
    )
    assert terminal.message.content == [
        ThinkingContent(thinking="hm", thinking_signature="c2lnbmVk"),
        ThinkingContent(thinking="", thinking_signature="alone"),
        ThinkingContent(redacted_data="opaque"),
        TextContent(text="one"),
        TextContent(text="two"),
    ]


def test_unknown_blocks_events_and_deltas_are_skipped() -> None:
    events, terminal = read(
        {"type": "something_new"},
        {"type": "ping"},
        block(0, "server_tool_use", id="s", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json='{"query": "x"}'),
        stop(0),
        block(1, "text", text=""),
        delta(1, "citations_delta", citation={}),
        delta(1, "text_delta", text="ok"),
        stop(1),
        ended("end_turn"),
        END,
    )
    assert kinds(events) == ["text_start", "text_delta", "text_end", "done"]
    assert get_text(terminal.message) == "ok"
    assert terminal.message.content == [TextContent(text="ok")]


@pytest.mark.behaviour("lemon_ai.5")
def test_ids_and_names_are_repaired() -> None:
    call: Json = {"input": {}}
    _, terminal = read(
        block(0, "tool_use", id="a", name="ls", **call),
        stop(0),
        block(1, "tool_use", id="a", name=" ", **call),
        stop(1),
        block(2, "tool_use", id="", name="ls", input={"path": "whole"}),
        stop(2),
        ended("tool_use"),
        END,
    )
    assert get_tool_calls(terminal.message) == [
        ToolCall(id="a", name="ls"),
        ToolCall(id="a_2", name="unknown_tool"),
        ToolCall(id="call_stream_2", name="ls", arguments={"path": "whole"}),
    ]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "stop"),  # no call came
        ("something_new", "stop"),
    ],
)
def test_stop_words(word: str, reason: str) -> None:
    _, terminal = read(block(0, "text", text="x"), stop(0), ended(word), END)
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == reason


@pytest.mark.parametrize("word", ["refusal", "sensitive"])
def test_a_refusal_is_an_error_with_its_reasons(word: str) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "Not this."}
    _, terminal = read(block(0, "text", text="x"), stop(0), ended(word, stop_details=details), END)
    assert isinstance(terminal, StreamError)
    error = terminal.message.error
    assert error is not None
    assert (error.category, error.code) == ("client", "content_filter")
    assert error.message == "the model refused to answer (bio: Not this.)"


def test_usage_is_cumulative_and_kept_on_an_error() -> None:
    start = {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 10,
                "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": None,
                "output_tokens": 1,
            }
        },
    }
    usage = {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 5}}
    _, done = read(start, block(0, "text", text="x"), {**ended("end_turn"), "usage": usage}, END)
    assert done.message.usage is not None
    found = done.message.usage
    assert (found.input, found.output, found.cache_read, found.cache_write) == (10, 20, 3, 0)

    failure = {"type": "error", "error": {"type": "api_error", "message": "m"}}
    _, broken = read(start, block(0, "text", text="x"), failure)
    assert broken.message.usage is not None
    assert broken.message.usage.input == 10


@pytest.mark.parametrize(
    ("kind", "status", "category"),
    [
        ("invalid_request_error", 400, "client"),
        ("authentication_error", 401, "auth"),
        ("billing_error", 402, "client"),
        ("permission_error", 403, "auth"),
        ("not_found_error", 404, "client"),
        ("conflict_error", 409, "client"),
        ("request_too_large", 413, "context_length"),
        ("rate_limit_error", 429, "rate_limit"),
        ("api_error", 500, "server"),
        ("timeout_error", 504, "transient"),
        ("overloaded_error", 529, "transient"),
    ],
)
def test_error_types_stand_for_statuses(kind: str, status: int, category: str) -> None:
    _, terminal = read(
        {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": "req_1"}
    )
    error = terminal.message.error
    assert error is not None
    assert (error.status, error.category, error.request_id) == (status, category, "req_1")
    assert ERROR_STATUS[kind] == status


async def test_two_retries_are_made(client: Client, sleeps: Sleeps) -> None:
    async with FakeProviderServer(default=Turn(http_error=HttpError(529, message="m"))) as fake:
        events = await all_events(client, claude(fake.origin), HELLO)
    assert isinstance(events[-1], StreamError)
    assert len(sleeps.seconds) == 2
    assert len(fake.requests) == 3


async def test_an_empty_400_of_kimi_is_tried_again(client: Client, sleeps: Sleeps) -> None:
    """It is a passing fault there, and says nothing about the length of the prompt."""
    async with FakeProviderServer(
        [Turn(http_error=HttpError(400, ""))], default=Turn(text="ok")
    ) as fake:
        model = claude(f"{fake.origin}/v1", provider="kimi")
        events = await all_events(client, model, HELLO)
        assert get_text(final_message(events)) == "ok"
        assert fake.requests[0].path == "/v1/messages"
        fake.enqueue(Turn(http_error=HttpError(400, "")))
        other = await all_events(client, claude(fake.origin), HELLO)
    assert isinstance(other[-1], StreamError)
    assert len(sleeps.seconds) == 1


async def test_the_headers(client: Client) -> None:
    async with FakeProviderServer(default=Turn(text="ok")) as fake:
        await client.complete(claude(fake.origin), HELLO)
    headers = fake.requests[0].headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert "anthropic-beta" not in headers
    assert "x-api-key" not in headers
