"""A scripted chat-completions server on loopback that speaks the real wire format.

async with FakeChatServer() as server:
    server.enqueue(Turn(text="hello"))
    ...                                  # point a client at server.base_url
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import orjson
from aiohttp import web

from lemon_ai.testing.chat_wire import ChatWire, in_pieces, render
from lemon_ai.testing.script import Gate, Script, ScriptExhausted, Turn, turn_from_json
from lemon_ai.text import dump_json

MAX_REQUEST_BYTES = 64 * 1024 * 1024
_RENDER_CACHE_SIZE = 256


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What a client sent; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        messages = self.body.get("messages") or [{}]
        content = messages[-1].get("content") or ""
        if isinstance(content, str):
            return content
        return "\n".join(part.get("text", "") for part in content)


@dataclass(slots=True)
class _Rendered:
    """Rendered turns by identity, so that a default turn costs its rendering once."""

    entries: dict[tuple[int, str], tuple[Turn, ChatWire]] = field(default_factory=dict)

    def get(self, turn: Turn, model: str) -> ChatWire:
        entry = self.entries.get((id(turn), model))
        if entry is None:
            if len(self.entries) >= _RENDER_CACHE_SIZE:
                self.entries.clear()
            entry = self.entries[(id(turn), model)] = (turn, render(turn, model))
        return entry[1]


class FakeChatServer:
    """`async with` it; `requests` lists every chat request in the order of arrival.

    With `api_key` a request without that bearer key gets a 401. `keep_requests=False` is for
    benchmarks: nothing is recorded.
    """

    def __init__(
        self,
        turns: Sequence[Turn] = (),
        *,
        default: Turn | None = None,
        models: Sequence[str] = ("fake-model",),
        api_key: str | None = None,
        port: int = 0,
        keep_requests: bool = True,
    ) -> None:
        self.script = Script(turns, default)
        self.requests: list[RecordedRequest] = []
        self._models = tuple(models)
        self._api_key = api_key
        self._port = port
        self._keep_requests = keep_requests
        self._rendered = _Rendered()
        self._runner: web.AppRunner | None = None
        self._open_answers = 0
        self._answer_closed = anyio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/control/requests", self._control_requests)
        app.router.add_post("/control/turns", self._control_turns)
        app.router.add_post("/control/gates/{name}", self._control_gate)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        """What a client is configured with."""
        return f"http://127.0.0.1:{self._port}/v1"

    def enqueue(self, *turns: Turn) -> None:
        """Add turns at the end of the script."""
        self.script.enqueue(*turns)

    def gate(self, name: str) -> Gate:
        """The gate of the turns that name it."""
        return self.script.gate(name)

    async def wait_idle(self) -> None:
        """Return once no answer is being sent: each has ended or its client has gone."""
        while self._open_answers:
            await self._answer_closed.wait()

    # -- the wire ----------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        recorded = RecordedRequest(
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=orjson.loads(await request.read()),
        )
        if self._keep_requests:
            self.requests.append(recorded)
        if not self._authorised(recorded.headers):
            return _error(401, "Incorrect API key provided", "invalid_request_error")
        try:
            turn = self.script.take(recorded.last_text)
        except ScriptExhausted as exc:
            return _error(400, str(exc), "script_exhausted")
        self._open_answers += 1
        try:
            return await self._answer(request, turn, str(recorded.body.get("model", "")))
        finally:
            self._open_answers -= 1
            self._answer_closed.set()
            self._answer_closed = anyio.Event()

    async def _answer(self, request: web.Request, turn: Turn, model: str) -> web.StreamResponse:
        if turn.gate is not None and turn.gate_after is None:
            await self.script.gate(turn.gate).pass_through()
        if turn.http_error is not None:
            body = turn.http_error.body
            data = body.encode() if isinstance(body, str) else dump_json(body)
            return web.Response(
                status=turn.http_error.status, body=data, headers=dict(turn.http_error.headers)
            )
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "cache-control": "no-cache"}
        )
        await response.prepare(request)
        async for piece in self._pieces(turn, model):
            await response.write(piece)
        if turn.disconnect:
            if request.transport is not None:
                request.transport.close()
            return response
        await response.write_eof()
        return response

    async def _pieces(self, turn: Turn, model: str) -> AsyncIterator[bytes]:
        wire = self._rendered.get(turn, model)
        for index, event in enumerate((*wire.deltas, wire.closing)):
            if turn.gate is not None and turn.gate_after == index:
                await self.script.gate(turn.gate).pass_through()
            if turn.pace_ms and index < len(wire.deltas):
                await anyio.sleep(turn.pace_ms / 1000)
            if not event:
                continue
            if turn.chunk_bytes is None:
                yield event
            else:
                for piece in in_pieces(event, turn.chunk_bytes):
                    yield piece

    async def _list_models(self, request: web.Request) -> web.Response:
        if not self._authorised({k.lower(): v for k, v in request.headers.items()}):
            return _error(401, "Incorrect API key provided", "invalid_request_error")
        rows = [{"id": model, "object": "model", "owned_by": "fake"} for model in self._models]
        return _json({"object": "list", "data": rows})

    def _authorised(self, headers: Mapping[str, str]) -> bool:
        return self._api_key is None or headers.get("authorization") == f"Bearer {self._api_key}"

    # -- control -----------------------------------------------------------------------------

    async def _control_requests(self, request: web.Request) -> web.Response:
        return _json([asdict(recorded) for recorded in self.requests])

    async def _control_turns(self, request: web.Request) -> web.Response:
        self.enqueue(*map(turn_from_json, orjson.loads(await request.read())))
        return _json({"remaining": self.script.remaining})

    async def _control_gate(self, request: web.Request) -> web.Response:
        self.gate(request.match_info["name"]).open()
        return _json({})


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump_json(value), content_type="application/json")


def _error(status: int, message: str, kind: str) -> web.Response:
    return _json({"error": {"message": message, "type": kind, "code": None}}, status)
