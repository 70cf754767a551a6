"""The Responses API: reading an answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from aiohttp import web

from lemon_ai import (
    Client,
    Event,
    StreamDone,
    StreamError,
    TextContent,
    ThinkingContent,
    ToolCall,
    get_text,
    get_thinking,
    get_tool_calls,
)
from lemon_ai.adapters.openai_responses_stream import ResponsesStreamParser, read_usage
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.testing import Turn
from lemon_ai.testing.wires import WIRES
from lemon_ai.tests.models import gpt
from lemon_ai.tests.support import HELLO, kinds, serving
from lemon_ai.text import dump_json
from lemon_ai.types import ModelCost

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


def read(*documents: Json, tier: str | None = None) -> tuple[list[Event], TerminalEvent]:
    """The events of an answer made of these documents."""
    partial = PartialMessage(gpt(cost=ModelCost(input=1, output=1)), timestamp=1)
    parser = ResponsesStreamParser(partial, tier)
    for document in documents:
        if parser.feed(SSEEvent(dump_json(document))):
            break
    terminal = parser.finish(None)
    return [*partial.drain(), terminal], terminal


def added(index: int, kind: str, **fields: Any) -> Json:
    item = {"type": kind, **fields}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, kind: str, **fields: Any) -> Json:
    item = {"type": kind, **fields}
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(index: int, kind: str, text: str) -> Json:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text}


def ended(status: str = "completed", kind: str | None = None, **fields: Any) -> Json:
    return {"type": f"response.{kind or status}", "response": {"status": status, **fields}}


TEXT = delta(0, "output_text", "x")


def test_parts_of_a_summary_are_paragraphs_and_the_item_is_the_signature() -> None:
    item = {"id": "rs_1", "encrypted_content": "whole", "summary": []}
    _, terminal = read(
        added(0, "reasoning", id="rs_1", encrypted_content="ha"),
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        delta(0, "reasoning_summary_text", "one"),
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        delta(0, "reasoning_summary_text", "two"),
        done(0, "reasoning", **item),
        added(1, "message", id="msg_1"),
        delta(1, "output_text", "ok"),
        done(1, "message", id="msg_1", phase="final_answer"),
        ended(),
    )
    thinking, text = terminal.message.content
    assert isinstance(thinking, ThinkingContent)
    assert thinking.thinking == "one\n\ntwo"
    assert thinking.thinking_signature == dump_json({"type": "reasoning", **item}).decode()
    assert text == TextContent(text="ok", text_signature='{"id":"msg_1","phase":"final_answer"}')


def test_encrypted_reasoning_alone_is_kept_and_nothing_at_all_is_not() -> None:
    _, terminal = read(
        done(0, "reasoning", id="rs_1", summary=[], encrypted_content="opaque"), TEXT, ended()
    )
    thinking = terminal.message.content[0]
    assert isinstance(thinking, ThinkingContent)
    assert thinking.thinking == ""
    assert thinking.thinking_signature is not None
    _, terminal = read(done(0, "reasoning", id="rs_1", summary=[]), TEXT, ended())
    assert terminal.message.content == [TextContent(text="x")]


def test_reasoning_of_open_models_is_thinking() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    _, terminal = read(
        delta(0, "reasoning_text", "hm"), done(0, "reasoning", content=content), TEXT, ended()
    )
    assert get_thinking(terminal.message) == "hm"


def test_what_came_only_at_the_end_of_an_item_is_taken_there() -> None:
    _, terminal = read(
        done(0, "reasoning", summary=[{"type": "summary_text", "text": "hm"}]),
        added(1, "message", id="msg_1"),
        done(1, "message", content=[{"type": "output_text", "text": "whole"}]),
        done(2, "function_call", call_id="c", name="ls", arguments='{"a":1}'),
        ended(),
    )
    assert (get_thinking(terminal.message), get_text(terminal.message)) == ("hm", "whole")
    assert get_tool_calls(terminal.message) == [ToolCall(id="c", name="ls", arguments={"a": 1})]


def test_arguments_are_not_taken_twice() -> None:
    call = {"call_id": "c", "id": "fc_1", "name": "ls"}
    whole = {"arguments": '{"a":1}'}
    _, terminal = read(
        added(0, "function_call", arguments="", **call),
        delta(0, "function_call_arguments", '{"a"'),
        {"type": "response.function_call_arguments.done", "output_index": 0, **whole},
        done(0, "function_call", **call, **whole),
        ended(),
    )
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == "tool_use"
    assert get_tool_calls(terminal.message) == [
        ToolCall(id="c|fc_1", name="ls", arguments={"a": 1})
    ]


@pytest.mark.behaviour("lemon_ai.5")
def test_ids_and_names_are_repaired() -> None:
    _, terminal = read(
        added(0, "function_call", call_id="c", id="fc_1", name="ls"),
        added(1, "function_call", call_id="c", id="fc_2", name=" "),
        added(2, "function_call", name="ls"),
        ended(),
    )
    assert get_tool_calls(terminal.message) == [
        ToolCall(id="c|fc_1", name="ls"),
        ToolCall(id="c_2|fc_2", name="unknown_tool"),
        ToolCall(id="call_stream_2", name="ls"),
    ]


def test_a_refusal_is_text_and_other_events_are_ignored() -> None:
    events, terminal = read(
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.queued"},
        {"type": "response.web_search_call.searching", "output_index": 0},
        added(0, "web_search_call", id="ws"),
        done(0, "web_search_call", id="ws"),
        delta(1, "refusal", "I will not."),
        {"type": "response.output_text.done", "output_index": 1, "text": "I will not."},
        ended(),
    )
    assert kinds(events) == ["text_start", "text_delta", "text_end", "done"]
    assert get_text(terminal.message) == "I will not."


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ended(), "stop"),
        (ended(kind="done"), "stop"),
        (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
        (ended("incomplete"), "length"),
    ],
)
def test_statuses(end: Json, reason: str) -> None:
    _, terminal = read(TEXT, end)
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == reason


def test_statuses_that_are_errors() -> None:
    filtered = ended("incomplete", incomplete_details={"reason": "content_filter"})
    limit = {"code": "rate_limit_exceeded", "message": "slow down"}
    overflow = {"code": "context_length_exceeded", "message": "too long"}
    for end, category, text in (
        (filtered, "client", "content filter"),
        (ended("failed", error=limit), "rate_limit", "slow down"),
        (ended("failed", error=overflow), "context_length", "too long"),
        (ended("failed", error={"code": "server_error", "message": "m"}), "server", "m"),
        (ended("cancelled", kind="done"), "unknown", "cancelled"),
    ):
        _, terminal = read(TEXT, end)
        assert isinstance(terminal, StreamError)
        assert get_text(terminal.message) == "x"
        error = terminal.message.error
        assert error is not None
        assert error.category == category
        assert text in error.message


@pytest.mark.parametrize(
    "document",
    [
        {"type": "error", "code": "server_error", "message": "gave up", "param": None},
        {"type": "error", "error": {"code": "server_error", "message": "gave up"}},
        {"type": "error", "error": {"type": "server_error", "message": "gave up"}},
        {"error": {"code": 500, "message": "gave up"}},
    ],
)
def test_an_error_event_is_flat_or_nested(document: Json) -> None:
    _, terminal = read(TEXT, document)
    assert isinstance(terminal, StreamError)
    error = terminal.message.error
    assert error is not None
    assert (error.status, error.category) == (500, "server")
    assert "gave up" in (error.provider_message or "")


def test_usage_and_the_tier_that_was_served() -> None:
    assert read_usage({}) is None
    usage = {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
    _, terminal = read(TEXT, ended(usage=usage, service_tier="default"), tier="priority")
    assert terminal.message.usage is not None
    assert (terminal.message.usage.input, terminal.message.usage.cache_read) == (6, 4)
    assert terminal.message.usage.cost is not None
    assert terminal.message.usage.cost.total == pytest.approx(11e-6)  # not the tier asked for
    _, terminal = read(TEXT, ended(usage=usage), tier="priority")
    assert terminal.message.usage is not None
    assert terminal.message.usage.cost is not None
    assert terminal.message.usage.cost.total == pytest.approx(22e-6)


async def test_the_answer_is_whole_although_the_server_holds_the_connection(
    client: Client,
) -> None:
    """The terminal event ends the stream; a server that sends on is not waited for."""
    released = anyio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(WIRES["openai_responses"].render(Turn(text="whole"), "m").whole())
        await released.wait()
        return response

    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    async with serving(app) as base_url:
        with anyio.fail_after(5):
            assert get_text(await client.complete(gpt(base_url), HELLO)) == "whole"
        released.set()
