"""Every wire API: what comes back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_ai import (
    Client,
    Event,
    StreamCanceled,
    StreamDone,
    StreamError,
    StreamOptions,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    get_text,
    get_thinking,
    get_tool_calls,
)
from lemon_ai.partial import PartialMessage
from lemon_ai.testing import FakeProviderServer, FakeToolCall, FakeUsage, HttpError, Turn
from lemon_ai.testing.delivery import writes
from lemon_ai.testing.script import Cut, Stop
from lemon_ai.tests.adapters.cases import CASES, ApiCase
from lemon_ai.tests.support import (
    HELLO,
    TOOL_CONTEXT,
    Sleeps,
    all_events,
    final_message,
    kinds,
)

pytestmark = pytest.mark.anyio

OPTIONS = StreamOptions(api_key="sk-x", reasoning="high", max_tokens=40_000)
FULL = Turn(
    thinking=["The user ", "wants 日本."],
    thinking_signature="c2lnbmF0dXJl",
    text=["Hällo\n", 'wörld "🍋"'],
    tool_calls=[
        FakeToolCall("ls", {"path": "a.py", "text": "日本"}, id="call_a", pieces=4),
        FakeToolCall("ls", {"path": 'b\n"🍋"'}, id="call_b", pieces=3),
    ],
    usage=FakeUsage(input=60, output=20, cache_read=40, cache_write=7, reasoning=5),
)
FULL_KINDS = [
    "thinking_start",
    "thinking_delta",
    "thinking_end",
    "text_start",
    "text_delta",
    "text_end",
    "tool_call_start",
    "tool_call_delta",
    "tool_call_start",
    "tool_call_delta",
    "tool_call_end",
    "done",
]
ANY_CASE = st.sampled_from(CASES)


async def answer(
    client: Client, provider: FakeProviderServer, case: ApiCase, turn: Turn
) -> list[Event]:
    """The events of one call that this turn answers."""
    provider.enqueue(turn)
    return await all_events(client, case.model(provider), TOOL_CONTEXT, OPTIONS)


def check_full(case: ApiCase, events: list[Event]) -> None:
    """The full answer is there, in the order of the stream's rules."""
    assert kinds(events) == ["start", *FULL_KINDS]
    message = final_message(events)
    assert message.content == case.content(FULL)
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert usage is not None
    counts = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    assert counts == ((60, 20, 40, 7) if case.counts_cache_writes else (67, 20, 40, 0))
    assert usage.total_tokens == sum(counts)


@pytest.mark.behaviour("lemon_ai.1")
@pytest.mark.parametrize("chunk_bytes", [1, 7, 4096])
async def test_an_answer_comes_through_whole_at_any_chunk_size(
    provider: FakeProviderServer, client: Client, case: ApiCase, chunk_bytes: int
) -> None:
    check_full(case, await answer(client, provider, case, replace(FULL, chunk_bytes=chunk_bytes)))


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("cut", ["character", "line_end", "escape"])
async def test_an_answer_may_be_cut_inside_a_character_a_line_end_or_an_escape(
    provider: FakeProviderServer, client: Client, case: ApiCase, cut: Cut, is_ascii: bool
) -> None:
    turn = replace(FULL, cut=cut, ascii=is_ascii, crlf=cut == "line_end")
    check_full(case, await answer(client, provider, case, turn))


@pytest.mark.parametrize(
    "dress",
    [
        {"crlf": True},
        {"pings": True},
        {"gzip": True},
        {"ascii": True},
        {"gzip": True, "chunk_bytes": 3},
    ],
    ids=["crlf", "pings", "gzip", "ascii", "gzip_in_pieces"],
)
async def test_line_ends_keep_alives_and_compression_change_nothing(
    provider: FakeProviderServer, client: Client, case: ApiCase, dress: dict[str, bool]
) -> None:
    check_full(case, await answer(client, provider, case, replace(FULL, **dress)))  # type: ignore[arg-type]


@settings(max_examples=60)
@given(ANY_CASE, st.lists(st.integers(1, 90), max_size=60))
def test_any_cut_of_the_bytes_gives_the_same_events(case: ApiCase, sizes: list[int]) -> None:
    data, pieces = case.bytes_of(FULL), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    events, terminal = case.parse([*pieces, data])
    assert kinds(events) == FULL_KINDS
    assert isinstance(terminal, StreamDone)
    assert terminal.message.content == case.content(FULL)


@pytest.mark.behaviour("lemon_ai.101")
def test_an_answer_cut_off_at_any_byte_reports_no_unfinished_call(case: ApiCase) -> None:
    """No end reason, no tool call."""
    turn = Turn(text="日", tool_calls=[FakeToolCall("w", {"path": "a", "text": "b"}, pieces=3)])
    data = case.bytes_of(turn)
    for position in range(len(data) - len(case.wire.render(turn, "fake-model").closing)):
        events, terminal = case.parse([data[:position]])
        assert isinstance(terminal, StreamError)
        assert get_tool_calls(terminal.message) == []
        assert not any(isinstance(event, ToolCallEnd) for event in events)
        assert terminal.message.error is not None
        assert terminal.message.error.category == "transient"
        assert terminal.message.error.code in ("stream_truncated", "empty_provider_stream")


@pytest.mark.behaviour("lemon_ai.101")
@pytest.mark.parametrize("stop", ["tool_use", "length"])
def test_arguments_that_end_in_the_middle_are_never_repaired(case: ApiCase, stop: Stop) -> None:
    """With an end reason the call is there, marked as unusable and without arguments."""
    whole = '{"path": "a.py", "text": "all of it"}'
    for length in range(1, len(whole)):
        turn = Turn(tool_calls=[FakeToolCall("w", whole[:length], pieces=2)], stop=stop)
        _, terminal = case.parse([case.bytes_of(turn)])
        (call,) = get_tool_calls(terminal.message)
        assert call.arguments == {}
        assert call.arguments_error is not None


@pytest.mark.behaviour("lemon_ai.102")
def test_text_is_the_same_however_its_bytes_are_cut(case: ApiCase) -> None:
    """Chinese, an emoji and separators that some readers take for line ends."""
    text = "日本\u2028語\u0085🍋\u2029."
    turn = Turn(text=[text], thinking=[text])
    data = case.bytes_of(turn)
    for ends in (data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r")):
        if ends is not data and not case.wire.is_sse:
            continue
        for position in range(len(ends)):
            _, terminal = case.parse([ends[:position], ends[position:]])
            assert isinstance(terminal, StreamDone)
            assert get_text(terminal.message) == get_thinking(terminal.message) == text
    if case.wire.is_sse:
        _, terminal = case.parse([data.rstrip(b"\n")])  # no blank line at the end
        assert isinstance(terminal, StreamDone)
        cut = data.index("🍋".encode()) + 2
        _, terminal = case.parse([data[:cut]])
        assert isinstance(terminal, StreamError)


@pytest.mark.behaviour("lemon_ai.105")
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_the_wait_an_overloaded_provider_asks_for_is_kept(
    provider: FakeProviderServer, client: Client, case: ApiCase, sleeps: Sleeps, status: int
) -> None:
    """Whoever has another key or provider learns at once how long this one is busy."""
    later = HttpError(status, message="busy", headers={"retry-after": "3600"})
    events = await answer(client, provider, case, Turn(http_error=later))
    error = final_message(events).error
    assert error is not None
    assert error.rate_limit_info is not None
    assert error.rate_limit_info.retry_after_ms == 3_600_000
    assert sleeps.seconds == []
    provider.script.default = Turn(http_error=HttpError(status, message="busy"))
    events = await all_events(client, case.model(provider), TOOL_CONTEXT, OPTIONS)
    assert isinstance(events[-1], StreamError)
    assert len(sleeps.seconds) == case.max_retries  # bounded also without a hint


@pytest.mark.behaviour("lemon_ai.4")
def test_partial_arguments_grow_and_broken_json_ends_as_no_arguments(case: ApiCase) -> None:
    whole = '{"path": "a.py", "text": "one", "n": 1}'
    call = FakeToolCall("w", whole, id="c", pieces=13)
    seen = _arguments_as_they_come(case, Turn(tool_calls=[call]))
    if not case.whole_calls:
        assert seen[0] == {}
        assert {"path": "a.py"} in seen  # at `{"path": "a.py", "te`
    assert seen[-1] == {"path": "a.py", "text": "one", "n": 1}
    for before, after in pairwise(seen):
        assert before.keys() <= after.keys()
        assert all(str(after[key]).startswith(str(value)) for key, value in before.items())

    broken = Turn(tool_calls=[FakeToolCall("w", whole[:20], id="c", pieces=3)])
    events, terminal = case.parse([case.bytes_of(broken)])
    ended = [event.tool_call for event in events if isinstance(event, ToolCallEnd)]
    assert [call.arguments for call in ended] == [{}]
    assert ended[0].arguments_error is not None
    assert get_tool_calls(terminal.message) == ended


def _arguments_as_they_come(case: ApiCase, turn: Turn) -> list[dict[str, object]]:
    partial = PartialMessage(case.model(), timestamp=1)
    parser, decoder = case.new_parser(partial), case.new_decoder()
    seen: list[dict[str, object]] = []
    for byte in case.bytes_of(turn):
        for event in decoder.feed(bytes([byte])):
            parser.feed(event)
            for made in partial.drain():
                if isinstance(made, ToolCallDelta):
                    seen.append(made.partial.tool_call(made.index).arguments)
    return seen


@pytest.mark.parametrize("stop", ["stop", "length", "tool_use", "filtered"])
async def test_why_an_answer_ends(
    provider: FakeProviderServer, client: Client, case: ApiCase, stop: Stop
) -> None:
    calls = [FakeToolCall("ls")] if stop == "tool_use" else []
    events = await answer(client, provider, case, Turn(text="x", tool_calls=calls, stop=stop))
    terminal = events[-1]
    if stop != "filtered":
        assert isinstance(terminal, StreamDone)
        assert terminal.reason == terminal.message.stop_reason == stop
        return
    assert isinstance(terminal, StreamError)
    assert get_text(terminal.message) == "x"
    assert terminal.message.error is not None
    assert (terminal.message.error.category, terminal.message.error.code) == (
        "client",
        "content_filter",
    )


@pytest.mark.behaviour("lemon_ai.6")
async def test_usage_is_disjoint_and_costs_something(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    """60 fresh, 40 cached, 7 written, 20 out of which 5 were reasoning."""
    message = final_message(await answer(client, provider, case, FULL))
    assert message.usage is not None
    assert message.usage.cost is not None
    expected = (60 + 4 + 14 + 200) if case.counts_cache_writes else (67 + 4 + 200)
    assert message.usage.cost.total == pytest.approx(expected * 1e-6)


@pytest.mark.behaviour("lemon_ai.6")
@pytest.mark.parametrize(("tier", "factor"), [("flex", 0.5), ("priority", 2.0)])
async def test_a_service_tier_changes_the_cost_where_there_is_one(
    provider: FakeProviderServer, client: Client, case: ApiCase, tier: str, factor: float
) -> None:
    provider.enqueue(FULL, FULL)
    plain, other = [
        final_message(await all_events(client, case.model(provider), TOOL_CONTEXT, options)).usage
        for options in (OPTIONS, OPTIONS.model_copy(update={"service_tier": tier}))
    ]
    assert plain is not None
    assert other is not None
    assert plain.cost is not None
    assert other.cost is not None
    factor = factor if case.tiers else 1.0
    assert other.cost.total == pytest.approx(plain.cost.total * factor)
    sent = [request.body.get("service_tier") for request in provider.requests]
    assert sent == [None, tier if case.tiers else None]


async def test_unknown_usage_is_none(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    events = await answer(client, provider, case, Turn(text="x", usage=None))
    assert final_message(events).usage is None


@pytest.mark.parametrize(
    ("status", "category", "retries"),
    [
        (400, "client", 0),
        (401, "auth", 0),
        (403, "auth", 0),
        (404, "client", 0),
        (413, "context_length", 0),
        (429, "rate_limit", None),
        (500, "server", None),
        (503, "transient", None),
        (529, "transient", None),
    ],
)
async def test_refusals_are_read_in_the_apis_own_form(
    provider: FakeProviderServer,
    client: Client,
    case: ApiCase,
    sleeps: Sleeps,
    status: int,
    category: str,
    retries: int | None,
) -> None:
    text = "prompt is too long" if status == 413 else "no such thing sk-x"
    refusal = Turn(http_error=HttpError(status, message=text))
    provider.enqueue(*[refusal] * 4)
    events = await all_events(client, case.model(provider), TOOL_CONTEXT, OPTIONS)
    assert kinds(events) == ["start", "error"]
    error = final_message(events).error
    assert error is not None
    assert (error.status, error.category) == (status, category)
    assert error.provider_message is not None
    assert text.replace("sk-x", "[REDACTED]") in error.provider_message
    assert len(sleeps.seconds) == (case.max_retries if retries is None else retries)


@pytest.mark.parametrize(
    ("status", "category"), [(400, "client"), (429, "rate_limit"), (500, "server")]
)
async def test_an_error_inside_the_stream_keeps_the_partial_text(
    provider: FakeProviderServer, client: Client, case: ApiCase, status: int, category: str
) -> None:
    turn = Turn(text="half ", stream_error={"message": "gave up", "code": status})
    events = await answer(client, provider, case, turn)
    message = final_message(events)
    assert kinds(events) == ["start", "text_start", "text_delta", "text_end", "error"]
    assert get_text(message) == "half "
    assert message.error is not None
    assert (message.error.status, message.error.category) == (status, category)
    assert "gave up" in (message.error.provider_message or "")


@pytest.mark.behaviour("lemon_ai.10")
async def test_429_then_200_retries_once_after_the_hint(
    provider: FakeProviderServer, client: Client, case: ApiCase, sleeps: Sleeps
) -> None:
    busy = HttpError(429, message="slow down", headers={"retry-after": "0.2"})
    provider.enqueue(Turn(http_error=busy))
    events = await answer(client, provider, case, Turn(text="ok"))
    assert kinds(events) == ["start", "text_start", "text_delta", "text_end", "done"]
    assert sleeps.seconds == [pytest.approx(1.2)]
    first, second = provider.requests
    assert first.raw_body == second.raw_body


@pytest.mark.behaviour("lemon_ai.10")
@pytest.mark.parametrize("content", ["", "half an answer"])
async def test_a_lost_connection_is_tried_again_only_before_any_content(
    provider: FakeProviderServer, client: Client, case: ApiCase, sleeps: Sleeps, content: str
) -> None:
    provider.enqueue(Turn(text=content, disconnect=True))
    events = await answer(client, provider, case, Turn(text="ok"))
    message = final_message(events)
    if content:
        assert message.stop_reason == "error"
        assert get_text(message) == content
        assert sleeps.seconds == []
    else:
        assert isinstance(events[-1], StreamDone)
        assert len(sleeps.seconds) == 1
    assert [event.type for event in events].count("start") == 1


TROUBLE = {
    "refused": Turn(http_error=HttpError(400, message="no")),
    "stream_error": Turn(text="a", stream_error={"message": "no", "code": 400}),
    "truncated": Turn(text="a", truncate=True),
    "truncated_call": Turn(tool_calls=[FakeToolCall("ls", {"a": 1})], truncate=True),
    "disconnected": Turn(text="a", disconnect=True),
    "disconnected_early": Turn(text="some words", disconnect_after_bytes=400),
    "filtered": Turn(text="a", stop="filtered"),
    "page": Turn(raw=b"<html></html>"),
    "empty": Turn(raw=b""),
    "not_json": Turn(raw=b"data: {nope\n\n"),
    "not_objects": Turn(raw=b'data: []\n\ndata: "x"\n\ndata: {"type": 5}\n\n'),
}


@pytest.mark.behaviour("lemon_ai.11")
@pytest.mark.parametrize("trouble", TROUBLE)
async def test_every_end_is_one_terminal_event(
    provider: FakeProviderServer, client: Client, case: ApiCase, trouble: str
) -> None:
    provider.script.default = TROUBLE[trouble]
    events = await all_events(client, case.model(provider), TOOL_CONTEXT, OPTIONS)
    ends = [event for event in events if event.type in ("done", "error", "canceled")]
    assert ends == [events[-1]]
    assert [event.type for event in events].count("start") == 1
    assert isinstance(events[-1], StreamError)
    assert not any(isinstance(event, ToolCallEnd) for event in events)


@pytest.mark.behaviour("lemon_ai.15")
@pytest.mark.parametrize("after", [None, 1], ids=["before_the_head", "after_a_delta"])
async def test_cancelling_ends_the_stream_although_the_server_is_silent(
    provider: FakeProviderServer, client: Client, case: ApiCase, after: int | None
) -> None:
    provider.enqueue(Turn(text=["one ", "two"], gate="g", gate_after=after))
    with anyio.fail_after(5):
        async with client.stream(case.model(provider), HELLO, OPTIONS) as stream:

            async def cancel() -> None:
                await provider.gate("g").reached.wait()
                stream.cancel("user_abort")

            events: list[Event] = []
            async with anyio.create_task_group() as tasks:
                if after is None:
                    tasks.start_soon(cancel)
                async for event in stream:
                    events.append(event)
                    if isinstance(event, TextDelta):
                        tasks.start_soon(cancel)
        await provider.wait_idle()  # the connection was closed
    last = events[-1]
    assert isinstance(last, StreamCanceled)
    assert last.reason == "user_abort"
    assert get_text(last.message) == ("" if after is None else "one ")


async def test_blocks_come_as_they_are_sent(
    provider: FakeProviderServer, client: Client, case: ApiCase
) -> None:
    """The first delta is there while the server still holds the second."""
    provider.enqueue(Turn(text=["one ", "two"], gate="g", gate_after=1))
    async with client.stream(case.model(provider), HELLO, OPTIONS) as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.delta == "one ":
                provider.gate("g").open()
        assert get_text(await stream.result()) == "one two"


def test_the_cuts_of_the_fake_server_are_where_they_say() -> None:
    case = CASES[0]
    rendered = case.wire.render(FULL, "m")
    for cut, ends in (("character", (b"\xe6", b"\xc3", b"\xf0")), ("escape", (b"\\",))):
        turn = replace(FULL, cut=cut)  # type: ignore[arg-type]
        pieces = [piece for _, found in writes(turn, case.wire, rendered) for piece in found]
        assert b"".join(pieces) == rendered.whole()
        assert any(piece.endswith(ends) for piece in pieces)
    turn = replace(FULL, cut="line_end", crlf=True)
    pieces = [piece for _, found in writes(turn, case.wire, rendered) for piece in found]
    assert any(piece.endswith(b"\r") for piece in pieces)
