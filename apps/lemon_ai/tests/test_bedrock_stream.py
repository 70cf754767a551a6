"""Bedrock's answers: frames, exceptions, and what is particular about the events."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_ai import (
    Client,
    ErrorInfo,
    StreamDone,
    StreamError,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from lemon_ai.adapters.bedrock_stream import BedrockStreamParser, EventStreamDecoder
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import BrokenFraming
from lemon_ai.testing import FakeChatServer, FakeToolCall, HttpError, Turn
from lemon_ai.testing.wires.bedrock import error, event, exception, frame, render
from lemon_ai.tests.cloud_models import CLAUDE
from lemon_ai.tests.support import HELLO, Sleeps, all_events, final_message

pytestmark = pytest.mark.anyio

FULL = render(
    Turn(
        thinking="Hm.",
        thinking_signature="sig",
        text="日本 🍋",
        tool_calls=[FakeToolCall("ls", {"path": "a"}, id="t1", pieces=3)],
    ),
    "m",
).whole()


def parsed(pieces: Iterable[bytes]) -> TerminalEvent:
    """The end of an answer whose bytes arrive in these pieces."""
    parser, decoder = BedrockStreamParser(PartialMessage(CLAUDE, 1)), EventStreamDecoder()
    for piece in pieces:
        if any(parser.feed(found) for found in decoder.feed(piece)):
            break
    return parser.finish(None)


def failure(*frames: bytes) -> ErrorInfo:
    terminal = parsed(frames)
    assert isinstance(terminal, StreamError)
    assert terminal.message.error is not None
    return terminal.message.error


def delta(index: int, **fields: object) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": index, "delta": fields})


def stop(reason: str = "end_turn") -> bytes:
    return event("messageStop", {"stopReason": reason})


# -- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", "000000100000000005c248eb7d98c8ff"),
        (b"{'foo':'bar'}", "0000001d00000000fd528c5a7b27666f6f273a27626172277dc3653936"),
    ],
)
def test_frames_of_the_fake_are_those_of_the_published_vectors(
    payload: bytes, expected: str
) -> None:
    assert frame({}, payload).hex() == expected


@pytest.mark.behaviour("lemon_ai.21")
def test_a_split_prelude_and_any_other_cut_change_nothing() -> None:
    whole = parsed([FULL])
    assert isinstance(whole, StreamDone)
    assert len(whole.message.content) == 3
    assert parsed([FULL[:5], FULL[5:]]) == whole
    assert parsed([FULL[i : i + 1] for i in range(len(FULL))]) == whole


@given(st.lists(st.integers(0, len(FULL)), max_size=12))
def test_any_cut_gives_the_same_answer(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(FULL)]
    pieces = [FULL[a:b] for a, b in pairwise(cuts)]
    assert parsed(pieces) == parsed([FULL])


@pytest.mark.behaviour("lemon_ai.21")
def test_no_flipped_bit_of_a_frame_goes_unseen() -> None:
    """Both checksums count: in the prelude, the headers, the payload and the checksums."""
    good = delta(0, text="x")
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        decoder = EventStreamDecoder()
        assert len(decoder.feed(good)) == 1
        with pytest.raises(BrokenFraming):
            decoder.feed(bytes(bad))


def test_what_came_before_a_broken_frame_is_still_given() -> None:
    good, bad = delta(0, text="x"), delta(0, text="y")[:-1] + b"?"
    decoder = EventStreamDecoder()
    assert [found.name for found in decoder.feed(good + bad)] == ["contentBlockDelta"]
    with pytest.raises(BrokenFraming, match="Checksum mismatch"):
        decoder.finish()
    with pytest.raises(BrokenFraming):
        decoder.feed(good)


def test_lengths_beyond_all_measure_are_refused() -> None:
    prelude = pack(">II", 0xFFFFFFFF, 16)
    with pytest.raises(BrokenFraming):
        EventStreamDecoder().feed(prelude + pack(">I", crc32(prelude)))


@pytest.mark.behaviour("lemon_ai.21")
async def test_a_wrong_checksum_ends_the_stream_as_an_error(
    server: FakeChatServer, client: Client, sleeps: Sleeps
) -> None:
    """Tried again while nothing has come, kept with what has."""
    bad = delta(0, text="lost")[:-1] + b"?"
    start = event("messageStart", {"role": "assistant"})
    model = CLAUDE.model_copy(update={"base_url": server.origin})
    options = StreamOptions(api_key="sk-x")
    server.enqueue(Turn(raw=start + bad), Turn(text="ok"))
    again = final_message(await all_events(client, model, HELLO, options))
    assert again.content == [TextContent(text="ok")]
    assert len(sleeps.seconds) == 1

    server.enqueue(Turn(raw=start + delta(0, text="half") + bad))
    message = final_message(await all_events(client, model, HELLO, options))
    assert message.content == [TextContent(text="half")]
    assert message.error is not None
    assert (message.error.category, message.error.code) == ("transient", "protocol_error")
    assert "broken" in message.error.message


# -- exceptions ----------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_ai.21")
@pytest.mark.parametrize(
    ("kind", "text", "category", "status"),
    [
        ("throttlingException", "Too many tokens, please wait", "rate_limit", 429),
        ("validationException", "The model id is wrong", "client", 400),
        ("validationException", "Input is too long for requested model.", "context_length", 400),
        ("serviceUnavailableException", "Try later", "transient", 503),
        ("modelStreamErrorException", "The model stumbled", "transient", 424),
        ("internalServerException", "Oops", "server", 500),
        ("newException", "Never seen", "unknown", None),
    ],
)
def test_an_exception_frame_ends_the_stream(
    kind: str, text: str, category: str, status: int | None
) -> None:
    found = failure(delta(0, text="half"), exception(kind, text), stop())
    assert (found.category, found.status, found.code) == (category, status, kind)
    assert text in found.message
    assert found.retryable == (category in ("rate_limit", "transient", "server"))


def test_an_error_frame_ends_the_stream() -> None:
    found = failure(delta(0, text="half"), error("InternalError", "went away"))
    assert found.code == "InternalError"
    assert "went away" in found.message
    assert found.category == "unknown"


@pytest.mark.parametrize(
    ("kind", "status", "category", "retryable"),
    [
        ("ThrottlingException", 429, "rate_limit", True),
        ("ModelNotReadyException", 429, "transient", True),
        ("ModelTimeoutException", 408, "transient", True),
        ("ModelErrorException", 424, "transient", True),
        ("AccessDeniedException", 403, "auth", False),
        ("ValidationException", 400, "client", False),
        ("ResourceNotFoundException", 404, "client", False),
    ],
)
async def test_a_refusal_has_its_kind_in_a_header(
    server: FakeChatServer,
    client: Client,
    kind: str,
    status: int,
    category: str,
    retryable: bool,
) -> None:
    headers = {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/", "x-amzn-requestid": "r7"}
    server.script.default = Turn(http_error=HttpError(status, {"message": "no"}, headers))
    model = CLAUDE.model_copy(update={"base_url": server.origin})
    events = await all_events(client, model, HELLO, StreamOptions(api_key="sk-x"))
    found = final_message(events).error
    assert found is not None
    assert (found.code, found.category, found.retryable) == (kind, category, retryable)
    assert found.request_id == "r7"
    assert len(server.requests) == (4 if retryable else 1)


# -- events --------------------------------------------------------------------------------------


def test_reasoning_of_every_kind() -> None:
    terminal = parsed(
        [
            delta(0, reasoningContent={"text": "a"}),
            delta(0, reasoningContent={"text": "b"}),
            delta(0, reasoningContent={"signature": "si"}),
            delta(0, reasoningContent={"signature": "g"}),
            event("contentBlockStop", {"contentBlockIndex": 0}),
            delta(1, reasoningContent={"redactedContent": "b3BhcXVl"}),
            event("contentBlockStop", {"contentBlockIndex": 1}),
            delta(2, text="x"),
            event("contentBlockStop", {"contentBlockIndex": 2}),
            delta(3, text="y"),
            stop(),
        ]
    )
    assert terminal.message.content == [
        ThinkingContent(thinking="ab", thinking_signature="sig"),
        ThinkingContent(redacted_data="b3BhcXVl"),
        TextContent(text="x"),
        TextContent(text="y"),
    ]


def test_calls_without_names_or_ids_are_repaired() -> None:
    def start(index: int, **use: str) -> bytes:
        return event("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": use}})

    terminal = parsed(
        [
            start(0, toolUseId="t", name="ls"),
            start(1, toolUseId="t", name=""),
            start(2, name="cat"),
            delta(0, toolUse={"input": '{"path": "a"}'}),
            delta(9, toolUse={"input": "lost"}),
            stop("tool_use"),
        ]
    )
    assert terminal.message.content == [
        ToolCall(id="t", name="ls", arguments={"path": "a"}),
        ToolCall(id="t_2", name="unknown_tool"),
        ToolCall(id="call_stream_2", name="cat"),
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_reasons_of_a_whole_answer(word: str, expected: str) -> None:
    assert parsed([delta(0, text="x"), stop(word)]).message.stop_reason == expected


@pytest.mark.parametrize(
    ("word", "category"),
    [
        ("guardrail_intervened", "client"),
        ("content_filtered", "client"),
        ("malformed_model_output", "transient"),
        ("malformed_tool_use", "transient"),
    ],
)
def test_reasons_that_are_errors(word: str, category: str) -> None:
    assert failure(delta(0, text="x"), stop(word)).category == category


def test_usage_comes_after_the_end_and_ends_the_reading() -> None:
    usage = {"inputTokens": 60, "outputTokens": 20, "totalTokens": 127}
    cached = {"cacheReadInputTokens": 40, "cacheWriteInputTokens": 7}
    parser, decoder = BedrockStreamParser(PartialMessage(CLAUDE, 1)), EventStreamDecoder()
    raw = delta(0, text="x") + stop() + event("metadata", {"usage": usage | cached})
    assert [parser.feed(found) for found in decoder.feed(raw)] == [False, False, True]
    found = parser.finish(None).message.usage
    assert found is not None
    assert (found.input, found.output, found.cache_read, found.cache_write) == (60, 20, 40, 7)


def test_odd_frames_are_skipped() -> None:
    headers = {":message-type": "event", ":event-type": "contentBlockDelta"}
    terminal = parsed(
        [
            frame({":message-type": "something"}, b"{}"),
            frame({}, b""),
            frame(headers, b"{nope"),
            frame(headers, b"[]"),
            frame(headers, b'{"delta": 5}'),
            event("newEvent", {"a": 1}),
            delta(0, text="x"),
            stop(),
        ]
    )
    assert terminal.message.content == [TextContent(text="x")]
