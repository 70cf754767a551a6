"""Chat completions: reading an answer."""

from __future__ import annotations

import pytest

from lemon_ai import (
    Event,
    StreamDone,
    StreamError,
    TextContent,
    ThinkingContent,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
    get_text,
    get_thinking,
    get_tool_calls,
)
from lemon_ai.adapters.openai_chat_stream import read_usage
from lemon_ai.tests.support import (
    chat_model,
    delta,
    parse_answer,
    wire,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_thinking_keeps_the_name_of_its_field(field: str) -> None:
    _, terminal = parse_answer([wire(delta(**{field: "hm"}), delta("stop", content="ok"))])
    assert terminal.message.content == [
        ThinkingContent(thinking="hm", thinking_signature=field),
        TextContent(text="ok"),
    ]


def test_content_may_be_a_list_of_typed_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "ok"},
    ]
    _, terminal = parse_answer([wire(delta("stop", content=parts))])
    assert (get_thinking(terminal.message), get_text(terminal.message)) == ("hm", "ok")


def test_a_refusal_is_text() -> None:
    _, terminal = parse_answer([wire(delta("stop", refusal="I will not."))])
    assert get_text(terminal.message) == "I will not."


@pytest.mark.behaviour("lemon_ai.4")
def test_partial_arguments_grow_and_broken_json_ends_as_no_arguments() -> None:
    seen: list[dict[str, object]] = []
    fragments = ['{"path": ', '"a.py", "te', 'xt": "on', 'e", ', '"n": 1}']
    chunks = [
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "w", "arguments": ""}}]),
        *(delta(tool_calls=[{"index": 0, "function": {"arguments": f}}]) for f in fragments),
    ]
    events = _with_arguments(wire(*chunks, delta("tool_calls")), seen)
    assert seen == [
        {},
        {"path": "a.py"},
        {"path": "a.py", "text": "on"},
        {"path": "a.py", "text": "one"},
        {"path": "a.py", "text": "one", "n": 1},
    ]
    assert isinstance(events[-1], StreamDone)

    broken, terminal = parse_answer([wire(*chunks[:3], delta("tool_calls"))])
    ended = [event.tool_call for event in broken if isinstance(event, ToolCallEnd)]
    assert len(ended) == 1
    assert ended[0].arguments == {}
    assert ended[0].arguments_error is not None
    assert "not valid JSON" in ended[0].arguments_error
    assert get_tool_calls(terminal.message) == ended


def _with_arguments(data: bytes, seen: list[dict[str, object]]) -> list[Event]:
    """Read byte by byte, so that each delta is looked at as it comes."""
    from lemon_ai.adapters.openai_chat_stream import ChatStreamParser
    from lemon_ai.partial import PartialMessage
    from lemon_ai.sse import SSEDecoder

    partial = PartialMessage(chat_model(), timestamp=1)
    parser, decoder = ChatStreamParser(partial, None), SSEDecoder()
    events: list[Event] = []
    for index in range(len(data)):
        for event in decoder.feed(data[index : index + 1]):
            parser.feed(event)
            for made in partial.drain():
                events.append(made)
                if isinstance(made, ToolCallDelta):
                    seen.append(made.partial.tool_call(made.index).arguments)
    return [*events, parser.finish(None)]


@pytest.mark.parametrize(
    ("wire_reason", "expected"),
    [
        ("stop", "stop"),
        ("END", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_calls", "stop"),  # no call came: the word alone does not make one
        ("something new", "stop"),
    ],
)
def test_stop_words(wire_reason: str, expected: str) -> None:
    _, terminal = parse_answer([wire(delta(wire_reason, content="x"))])
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == terminal.message.stop_reason == expected


def test_calls_with_the_word_stop_are_tool_use() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "ls", "arguments": "{}"}}
    _, terminal = parse_answer([wire(delta("stop", tool_calls=[call]))])
    assert isinstance(terminal, StreamDone)
    assert terminal.reason == "tool_use"


@pytest.mark.parametrize(
    ("wire_reason", "category", "retryable"),
    [
        ("content_filter", "client", False),
        ("sensitive", "client", False),
        ("error", "transient", True),
        ("network_error", "transient", True),
        ("insufficient_system_resource", "transient", True),
    ],
)
def test_stop_words_that_are_errors(wire_reason: str, category: str, retryable: bool) -> None:
    _, terminal = parse_answer([wire(delta(wire_reason, content="half"))])
    assert isinstance(terminal, StreamError)
    assert get_text(terminal.message) == "half"
    assert terminal.message.error is not None
    assert terminal.message.error.category == category
    assert terminal.message.error.retryable is retryable


def test_an_error_inside_the_stream_has_its_status_and_keeps_the_partial_text() -> None:
    error = {"error": {"message": "Overloaded", "code": 529}}
    _, terminal = parse_answer([wire(delta(content="half "), error)])
    assert isinstance(terminal, StreamError)
    assert get_text(terminal.message) == "half "
    info = terminal.message.error
    assert info is not None
    assert (info.status, info.category, info.provider_message) == (529, "transient", "Overloaded")


def test_an_empty_answer_is_an_error() -> None:
    for data in (b"", b"data: [DONE]\n\n", b": ping\n\n"):
        _, terminal = parse_answer([data])
        assert isinstance(terminal, StreamError)
        assert terminal.message.error is not None
        assert terminal.message.error.code == "empty_provider_stream"
        assert terminal.message.error.category == "transient"


def test_an_answer_that_ends_after_its_stop_word_is_whole_without_done() -> None:
    _, terminal = parse_answer([wire(delta("stop", content="all"), done=False)])
    assert isinstance(terminal, StreamDone)


def test_undecodable_and_foreign_events_are_skipped() -> None:
    data = b"data: {broken\n\ndata: 17\n\n: PROCESSING\n\ndata: \xff\xfe\n\n"
    _, terminal = parse_answer([data + wire(delta("stop", content="ok"))])
    assert get_text(terminal.message) == "ok"


def test_a_lone_surrogate_escape_does_not_break_the_answer() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a\\ud83d b"},"finish_reason":"stop"}]}\n\n'
    _, terminal = parse_answer([raw])
    assert get_text(terminal.message).startswith("a")


@pytest.mark.behaviour("lemon_ai.6")
def test_usage_is_disjoint_and_counts_reasoning_once() -> None:
    inside = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert read_usage(inside) == Usage(input=60, output=50, cache_read=30, cache_write=10)
    beside = {**inside, "total_tokens": 170}
    assert read_usage(beside) == Usage(input=60, output=70, cache_read=30, cache_write=10)
    hits = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}
    assert read_usage(hits) == Usage(input=5, output=1, cache_read=4)
    assert read_usage({"queue_time": 1}) is None


@pytest.mark.parametrize("place", ["last_chunk", "choice_chunk", "inside_choice"])
def test_usage_is_found_in_every_place_it_is_sent(place: str) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    last: dict[str, object] = delta("stop", content="x")
    chunks: list[object] = [last]
    if place == "last_chunk":
        chunks.append({"choices": [], "usage": usage})
    elif place == "choice_chunk":
        last["usage"] = usage
    else:
        last["choices"][0]["usage"] = usage  # type: ignore[index]
    _, terminal = parse_answer([wire(*chunks)])
    assert terminal.message.usage is not None
    assert terminal.message.usage.total_tokens == 12
    assert terminal.message.usage.cost is not None
    assert terminal.message.usage.cost.total == pytest.approx(30e-6)


def test_unknown_usage_and_unknown_price_are_null() -> None:
    _, silent = parse_answer([wire(delta("stop", content="x"))])
    assert silent.message.usage is None
    counted = wire(delta("stop", content="x"), {"usage": {"prompt_tokens": 1}})
    _, unpriced = parse_answer([counted], chat_model(cost=None))
    assert unpriced.message.usage is not None
    assert unpriced.message.usage.cost is None


@pytest.mark.parametrize("order", ["before", "behind", "together"])
def test_encrypted_reasoning_stays_with_its_call(order: str) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "ls", "arguments": "{}"}}
    detail = {"type": "reasoning.encrypted", "id": "c1", "data": "opaque"}
    first, second = delta(tool_calls=[call]), delta(reasoning_details=[detail])
    if order == "before":
        first, second = second, first
    if order == "together":
        first, second = delta(), delta(tool_calls=[call], reasoning_details=[detail])
    data = wire(first, second, delta("tool_calls"))
    _, terminal = parse_answer([data])
    assert get_tool_calls(terminal.message)[0].thought_signature == (
        '{"type":"reasoning.encrypted","id":"c1","data":"opaque"}'
    )
