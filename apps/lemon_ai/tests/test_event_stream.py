"""EventStream: order, cancelling, time limit, closing, exactly one terminal event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import anyio
import anyio.lowlevel
import pytest

from lemon_ai import (
    Client,
    Event,
    EventStream,
    ModelCanceled,
    ModelError,
    StreamCanceled,
    StreamDone,
    StreamError,
    StreamOptions,
    TextDelta,
    get_text,
    get_tool_calls,
)
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.testing import FakeChatServer, FakeToolCall, HttpError, Turn
from lemon_ai.tests.support import HELLO, TOOL_CONTEXT, all_events, chat_model

pytestmark = pytest.mark.anyio
LOOP_TURNS = 50


class RaisingAdapter:
    """Breaks its contract: text first, then an exception, or no terminal event at all."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        request.partial.add_text("half ")
        yield request.partial.drain()
        if self.error is not None:
            raise self.error


SCENARIOS = {
    "answer": Turn(text="hi"),
    "calls": Turn(tool_calls=[FakeToolCall("ls", {})]),
    "http error": Turn(http_error=HttpError(400, {"error": {"message": "no"}})),
    "error in the stream": Turn(text="a b", stream_error={"message": "x", "code": 400}),
    "disconnect after text": Turn(text="a b", disconnect=True),
    "disconnect before text": Turn(disconnect=True),
    "cut off": Turn(text="a b", truncate=True),
    "empty": Turn(),
    "garbage": Turn(raw=b"<html>not a stream</html>"),
}


@pytest.mark.behaviour("lemon_ai.11")
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_one_start_and_one_terminal_event_in_every_scenario(
    server: FakeChatServer, client: Client, scenario: str
) -> None:
    server.enqueue(*[SCENARIOS[scenario]] * 4)  # enough for every retry
    with anyio.fail_after(5):
        events = await all_events(client, chat_model(server.base_url), TOOL_CONTEXT)
    assert [event.type for event in events].count("start") == 1
    assert events[0].type == "start"
    assert [isinstance(e, TerminalEvent) for e in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.behaviour("lemon_ai.11")
@pytest.mark.parametrize("error", [RuntimeError("adapter fault sk-secret"), None])
async def test_a_faulty_adapter_ends_as_one_error_event(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(env={}, adapters={"faulty": RaisingAdapter(error)}) as client:
        model = chat_model(api="faulty")
        events = await all_events(client, model, options=StreamOptions(api_key="sk-secret"))
    terminal = events[-1]
    assert isinstance(terminal, StreamError)
    assert get_text(terminal.message) == "half "
    assert terminal.message.stop_reason == "error"
    expected = "adapter fault [REDACTED]" if error else "without a terminal event"
    assert expected in (terminal.message.error_message or "")
    assert [event.type for event in events].count("start") == 1
    assert sum(isinstance(event, TerminalEvent) for event in events) == 1
    logged = [str(vars(record)) for record in caplog.records]
    assert len(logged) == (1 if error else 0)
    assert all("Traceback" in text and "sk-secret" not in text for text in logged)


async def test_iteration_stops_after_the_terminal_event(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="hi"))
    async with client.stream(chat_model(server.base_url), HELLO) as stream:
        events = [event async for event in stream]
        assert stream.terminal is events[-1]
        assert [event async for event in stream] == []
        assert await stream.next_batch() == []
        assert get_text(await stream.result()) == "hi"


async def test_batches_hold_all_events_in_order(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="one two three"))
    events: list[Event] = []
    async with client.stream(chat_model(server.base_url), HELLO) as stream:
        while batch := await stream.next_batch():
            events += batch
    assert "".join(e.delta for e in events if isinstance(e, TextDelta)) == "one two three"
    assert isinstance(events[-1], StreamDone)


async def test_collect_text_and_result(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text="all of it"), Turn(http_error=HttpError(400, "no")))
    model = chat_model(server.base_url)
    async with client.stream(model, HELLO) as stream:
        assert await stream.collect_text() == "all of it"
    async with client.stream(model, HELLO) as stream:
        with pytest.raises(ModelError, match="HTTP 400") as caught:
            await stream.result()
        assert caught.value.message.stop_reason == "error"


async def test_a_snapshot_is_a_frozen_copy(server: FakeChatServer, client: Client) -> None:
    server.enqueue(Turn(text=["one ", "two"]))
    snapshots: list[str] = []
    async with client.stream(chat_model(server.base_url), HELLO) as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                snapshots.append(get_text(event.snapshot()))
    assert snapshots[-1] == "one two"
    assert get_text((await _done(stream)).message) == "one two"


async def _done(stream: EventStream) -> StreamDone:
    assert isinstance(stream.terminal, StreamDone)
    return stream.terminal


@pytest.mark.behaviour("lemon_ai.15")
@pytest.mark.parametrize("gate_after", [None, 0, 1])
async def test_cancel_ends_a_silent_stream_at_once_and_closes_the_connection(
    server: FakeChatServer, client: Client, gate_after: int | None
) -> None:
    """No timer is involved: the end is there within a few turns of the loop, far below 100 ms."""
    server.enqueue(Turn(text="one two", gate="silent", gate_after=gate_after))
    ended = anyio.Event()
    events: list[Event] = []

    async def consume() -> None:
        async for event in stream:
            events.append(event)
        ended.set()

    with anyio.fail_after(5):
        async with (
            client.stream(chat_model(server.base_url), HELLO) as stream,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consume)
            await server.gate("silent").reached.wait()
            while gate_after and not any(isinstance(e, TextDelta) for e in events):
                await anyio.lowlevel.checkpoint()
            stream.cancel("user_abort")
            stream.cancel("too late")
            for _ in range(LOOP_TURNS):
                await anyio.lowlevel.checkpoint()
            assert ended.is_set()
        await server.wait_idle()
    terminal = events[-1]
    assert isinstance(terminal, StreamCanceled)
    assert terminal.reason == "user_abort"
    assert terminal.message.stop_reason == "aborted"
    assert get_text(terminal.message) == ("one " if gate_after else "")


async def test_cancel_before_the_first_pull_sends_nothing(
    server: FakeChatServer, client: Client
) -> None:
    async with client.stream(chat_model(server.base_url), HELLO) as stream:
        stream.cancel("shutdown")
        assert [event.type async for event in stream] == ["start", "canceled"]
        with pytest.raises(ModelCanceled, match="shutdown"):
            await stream.result()
    assert server.requests == []


async def test_cancel_keeps_no_unfinished_tool_call(server: FakeChatServer, client: Client) -> None:
    call = FakeToolCall("ls", {"path": "somewhere"}, pieces=4)
    server.enqueue(Turn(tool_calls=[call], gate="mid", gate_after=3))

    async def cancel_midway() -> None:
        await server.gate("mid").reached.wait()
        stream.cancel("redirected")

    async with client.stream(chat_model(server.base_url), TOOL_CONTEXT) as stream:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_midway)
                events = [event async for event in stream]
    assert isinstance(events[-1], StreamCanceled)
    assert events[-1].reason == "redirected"
    assert get_tool_calls(events[-1].message) == []


async def test_the_time_limit_cancels_the_whole_stream(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="one two", gate="slow", gate_after=1))
    options = StreamOptions(stream_timeout_ms=50)
    with anyio.fail_after(5):
        events = await all_events(client, chat_model(server.base_url), options=options)
        await server.wait_idle()
    assert isinstance(events[-1], StreamCanceled)
    assert events[-1].reason == "timeout"
    assert events[-1].message.stop_reason == "error"


async def test_a_consumer_that_stops_early_closes_the_connection(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="one two", gate="open", gate_after=1))
    with anyio.fail_after(5):
        async with client.stream(chat_model(server.base_url), HELLO) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
        await server.wait_idle()


async def test_a_cancelled_task_closes_the_connection(
    server: FakeChatServer, client: Client
) -> None:
    server.enqueue(Turn(text="one two", gate="open", gate_after=1))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(all_events, client, chat_model(server.base_url))
            await server.gate("open").reached.wait()
            tasks.cancel_scope.cancel()
        await server.wait_idle()


async def test_a_stream_outside_its_block_is_refused(client: Client) -> None:
    stream = client.stream(chat_model(), HELLO)
    with pytest.raises(RuntimeError, match="async with"):
        await stream.next_batch()


def test_building_an_answer_is_linear_in_its_size() -> None:
    partial = PartialMessage(chat_model(), timestamp=1)
    for _ in range(20_000):
        partial.add_text("x" * 50)
        partial.drain()
    assert len(partial.text()) == 1_000_000
