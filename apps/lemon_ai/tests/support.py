"""Small helpers that several tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from lemon_ai import (
    AssistantMessage,
    Catalog,
    Client,
    Context,
    Event,
    Model,
    ModelCost,
    StreamOptions,
    Tool,
    UserMessage,
)
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.openai_chat_request import build_body
from lemon_ai.adapters.openai_chat_stream import ChatStreamParser
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEDecoder
from lemon_ai.transport import Transport
from lemon_ai.types import Message

LS = Tool("ls", "List a folder.", {"type": "object", "properties": {"path": {"type": "string"}}})
HELLO = Context(messages=[UserMessage(content="Say hello", timestamp=1)])
TOOL_CONTEXT = Context(messages=HELLO.messages, tools=(LS,))


class Sleeps:
    """Stands for `anyio.sleep` and keeps what it was asked for, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def chat_model(base_url: str = "http://127.0.0.1:1/v1", **changes: object) -> Model:
    """A model of an unknown compatible server, with a price."""
    model = Catalog().endpoint_model("openai", "fake-model", base_url)
    price = ModelCost(input=1, output=10, cache_read=0.1, cache_write=2)
    return model.model_copy(update={"cost": price, **changes})


def request_body(
    messages: Sequence[Message],
    *,
    model: Model | None = None,
    tools: Sequence[Tool] = (),
    system_prompt: str | None = None,
    options: StreamOptions | None = None,
) -> dict[str, object]:
    """The parsed body that would be sent."""
    model = model or chat_model()
    context = Context(system_prompt=system_prompt, messages=messages, tools=tools)
    raw = build_body(model, model.base_url, context, options or StreamOptions(), ToolCache())
    assert raw is not None
    body = orjson.loads(raw)
    assert isinstance(body, dict)
    return body


def adapter_request(
    model: Model,
    context: Context = HELLO,
    options: StreamOptions | None = None,
    env: Mapping[str, str] | None = None,
) -> AdapterRequest:
    """What an adapter is given for this call."""
    return AdapterRequest(
        model=model,
        context=context,
        options=options or StreamOptions(),
        base_url=model.base_url,
        api_key=None,
        partial=PartialMessage(model, timestamp=1),
        transport=Transport(env={}),
        env=env or {},
    )


def parse_answer(
    pieces: Iterable[bytes], model: Model | None = None
) -> tuple[list[Event], TerminalEvent]:
    """All events of an answer whose bytes arrive in these pieces, and its terminal event."""
    partial = PartialMessage(model or chat_model(), timestamp=1)
    parser = ChatStreamParser(partial, None)
    decoder = SSEDecoder()
    events: list[Event] = []
    complete = False
    for piece in pieces:
        complete = complete or any(parser.feed(event) for event in decoder.feed(piece))
        events += partial.drain()
    if not complete:
        any(parser.feed(event) for event in decoder.finish())
    terminal = parser.finish(None)
    return [*events, *partial.drain(), terminal], terminal


async def all_events(
    client: Client,
    model: Model,
    context: Context = HELLO,
    options: StreamOptions | None = None,
) -> list[Event]:
    """Every event of one call."""
    async with client.stream(model, context, options) as stream:
        return [event async for event in stream]


def kinds(events: Iterable[Event]) -> list[str]:
    """The event types in order, runs of equal ones as one."""
    out: list[str] = []
    for event in events:
        if not out or out[-1] != event.type:
            out.append(event.type)
    return out


def final_message(events: Sequence[Event]) -> AssistantMessage:
    """The message of the terminal event; its time is set to 1 so that messages compare."""
    message = getattr(events[-1], "message", None)
    assert isinstance(message, AssistantMessage)
    return message.model_copy(update={"timestamp": 1})


def wire(*documents: object, done: bool = True) -> bytes:
    """An answer made of these chunks."""
    lines = [b"data: " + orjson.dumps(document) + b"\n\n" for document in documents]
    return b"".join([*lines, b"data: [DONE]\n\n"] if done else lines)


def delta(finish_reason: str | None = None, **fields: object) -> dict[str, object]:
    """One chunk with this delta."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """A web application on a free port; gives its `/v1` base URL."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
