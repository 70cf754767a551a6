"""The script without HTTP: an adapter for fast tests of whoever calls a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.openai_chat_stream import ChatStreamParser
from lemon_ai.adapters.streaming import failed
from lemon_ai.error_parsing import parse_http_error, parse_transport_error
from lemon_ai.events import Event
from lemon_ai.sse import SSEDecoder
from lemon_ai.testing.script import Gate, Script, Turn
from lemon_ai.testing.wires.openai_chat import openai_error, render
from lemon_ai.text import dump_json
from lemon_ai.types import Context, Model, UserMessage, get_text_of, now_ms

API = "scripted"


def scripted_model(model_id: str = "scripted", *, tools: bool = True) -> Model:
    """A model that a ScriptedAdapter registered as `scripted` answers for."""
    return Model(id=model_id, api=API, provider=API, context_window=100_000, tools=tools)


class ScriptedAdapter:
    """`Client(adapters={"scripted": ScriptedAdapter([...])})` with `scripted_model()`.

    Its answers run through the real parser of chat completions; `requests` lists what was asked.
    """

    def __init__(self, turns: Sequence[Turn] = (), *, default: Turn | None = None) -> None:
        self.script = Script(turns, default)
        self.requests: list[AdapterRequest] = []

    def enqueue(self, *turns: Turn) -> None:
        """Add turns at the end of the script."""
        self.script.enqueue(*turns)

    def gate(self, name: str) -> Gate:
        """The gate of the turns that name it."""
        return self.script.gate(name)

    async def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        self.requests.append(request)
        turn = self.script.take(_last_text(request.context))
        if turn.gate is not None and turn.gate_after is None:
            await self.script.gate(turn.gate).pass_through()
        if turn.http_error is not None:
            error = turn.http_error
            document: object = error.body
            if error.message is not None:
                document = openai_error(error.status, error.message)
            body = document.encode() if isinstance(document, str) else dump_json(document)
            info = parse_http_error(error.status, body, error.headers, now_ms=now_ms())
            yield [failed(request.partial, info)]
            return
        parser = ChatStreamParser(request.partial, request.options.service_tier)
        decoder = SSEDecoder()
        wire = render(turn, request.model.id)
        for index, piece in enumerate((*wire.deltas, wire.closing)):
            if turn.gate is not None and turn.gate_after == index:
                await self.script.gate(turn.gate).pass_through()
            for event in decoder.feed(piece):
                parser.feed(event)
            if batch := request.partial.drain():
                yield batch
        broken = None
        if turn.disconnect:
            broken = parse_transport_error("the connection broke", API, "connection_broken")
        terminal = parser.finish(broken)
        yield [*request.partial.drain(), terminal]


def _last_text(context: Context) -> str:
    last = context.messages[-1] if context.messages else UserMessage(content="")
    return get_text_of(last)
