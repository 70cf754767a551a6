"""A scripted model provider on loopback that speaks the real wire formats.

    async with FakeProviderServer() as server:
        server.enqueue(Turn(text="hello"))
        ...                     # point a client at server.base_url_of("anthropic_messages")

A turn is rendered in the format of the route that is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

import anyio
import orjson
from aiohttp import web

from lemon_ai.testing.delivery import writes
from lemon_ai.testing.script import Gate, HttpError, Script, ScriptExhausted, Turn, turn_from_json
from lemon_ai.testing.wires import WIRES, Rendered, Wire
from lemon_ai.testing.wires.base import bearer_of
from lemon_ai.testing.wires.openai_chat import openai_error
from lemon_ai.text import dump_json

MAX_REQUEST_BYTES = 64 * 1024 * 1024
_RENDER_CACHE_SIZE = 256


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What a client sent; header names in lower case.

    `raw_path` is the path as it stood in the request line, with its query; `last_text` the text
    of the last message; `raw_body` the bytes, of which `body` is the parsed form.
    """

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    last_text: str = ""
    api: str = ""
    raw_path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    raw_body: bytes = field(default=b"", repr=False)


# What a probed path answers: a document, or a function of the request that gives one or a whole
# answer; None answers 404.
Probe = Mapping[str, Any] | Sequence[Any] | Callable[[RecordedRequest], object]


@dataclass(slots=True)
class _Renderings:
    """Rendered turns by identity, so that a default turn costs its rendering once."""

    entries: dict[tuple[str, int, str], tuple[Turn, Rendered]] = field(default_factory=dict)

    def get(self, wire: Wire, turn: Turn, model: str) -> Rendered:
        key = (wire.api, id(turn), model)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= _RENDER_CACHE_SIZE:
                self.entries.clear()
            entry = self.entries[key] = (turn, wire.render(turn, model))
        return entry[1]


class FakeProviderServer:
    """`async with` it; `requests` lists every model request in the order of arrival.

    With `api_key` a request without that key, in the form of its wire API, gets a 401. `models`
    are ids, or whole rows of `GET /v1/models`. `probes` gives documents of other paths, for
    example `/props`; requests for them, and for the list of models, are in `probed`.
    `keep_requests=False` is for benchmarks: nothing is recorded.
    """

    def __init__(
        self,
        turns: Sequence[Turn] = (),
        *,
        default: Turn | None = None,
        models: Sequence[str | Mapping[str, Any]] = ("fake-model",),
        api_key: str | None = None,
        port: int = 0,
        keep_requests: bool = True,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self.script = Script(turns, default)
        self.requests: list[RecordedRequest] = []
        self.probed: list[RecordedRequest] = []
        self.probes: dict[str, Probe] = dict(probes or {})
        self._models = tuple(models)
        self._api_key = api_key
        self._port = port
        self._keep_requests = keep_requests
        self._renderings = _Renderings()
        self._runner: web.AppRunner | None = None
        self._open_answers = 0
        self._answer_closed = anyio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        for wire in WIRES.values():
            for route in wire.routes:
                app.router.add_post(route, partial(self._call, wire))
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/control/requests", self._control_requests)
        app.router.add_post("/control/turns", self._control_turns)
        app.router.add_post("/control/gates/{name}", self._control_gate)
        app.router.add_route("*", "/{path:.*}", self._probe)
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
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._port}"

    def base_url_of(self, api: str) -> str:
        """What a client of this wire API is configured with."""
        return f"{self.origin}{WIRES[api].base_path}"

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

    async def _call(self, wire: Wire, request: web.Request) -> web.StreamResponse:
        recorded = _recorded(request, await request.read(), wire)
        if self._keep_requests:
            self.requests.append(recorded)
        if self._api_key is not None and wire.key_of(recorded.headers) != self._api_key:
            return _refusal(wire, HttpError(401, message="Incorrect API key provided"))
        try:
            turn = self.script.take(recorded.last_text)
        except ScriptExhausted as exc:
            return _refusal(wire, HttpError(400, message=str(exc)))
        self._open_answers += 1
        try:
            model = request.match_info.get("model") or str(recorded.body.get("model", ""))
            return await self._answer(wire, request, turn, model)
        finally:
            self._open_answers -= 1
            self._answer_closed.set()
            self._answer_closed = anyio.Event()

    async def _answer(
        self, wire: Wire, request: web.Request, turn: Turn, model: str
    ) -> web.StreamResponse:
        if turn.gate is not None and turn.gate_after is None:
            await self.script.gate(turn.gate).pass_through()
        if turn.http_error is not None:
            return _refusal(wire, turn.http_error)
        response = web.StreamResponse(
            headers={"content-type": wire.content_type, "cache-control": "no-cache"}
        )
        if turn.gzip:
            response.headers["content-encoding"] = "gzip"
        await response.prepare(request)
        left = turn.disconnect_after_bytes
        async for data in self._writes(turn, wire, self._renderings.get(wire, turn, model)):
            if left is not None and len(data) >= left:
                await response.write(data[:left])
                return _dropped(request, response)
            left = None if left is None else left - len(data)
            await response.write(data)
        if turn.disconnect:
            return _dropped(request, response)
        await response.write_eof()
        return response

    async def _writes(self, turn: Turn, wire: Wire, rendered: Rendered) -> AsyncIterator[bytes]:
        for index, pieces in writes(turn, wire, rendered):
            if turn.gate is not None and turn.gate_after == index:
                await self.script.gate(turn.gate).pass_through()
            if turn.pace_ms and index < len(rendered.deltas):
                await anyio.sleep(turn.pace_ms / 1000)
            for data in pieces:
                yield data

    async def _list_models(self, request: web.Request) -> web.Response:
        recorded = _recorded(request, b"")
        self.probed.append(recorded)
        headers = recorded.headers
        keys = (bearer_of(headers), headers.get("x-api-key"), headers.get("api-key"))
        if self._api_key is not None and self._api_key not in keys:
            return _json(openai_error(401, "Incorrect API key provided"), 401)
        rows = [_model_row(model) for model in self._models]
        return _json({"object": "list", "data": rows})

    async def _probe(self, request: web.Request) -> web.Response:
        recorded = _recorded(request, await request.read())
        self.probed.append(recorded)
        found: object = self.probes.get(request.path)
        if callable(found):
            found = found(recorded)
        if found is None:
            return _json({"error": {"message": f"no route {request.path}"}}, 404)
        return found if isinstance(found, web.Response) else _json(found)

    # -- control -----------------------------------------------------------------------------

    async def _control_requests(self, request: web.Request) -> web.Response:
        rows = [asdict(recorded) for recorded in self.requests]
        for row in rows:
            del row["raw_body"]
        return _json(rows)

    async def _control_turns(self, request: web.Request) -> web.Response:
        self.enqueue(*map(turn_from_json, orjson.loads(await request.read())))
        return _json({"remaining": self.script.remaining})

    async def _control_gate(self, request: web.Request) -> web.Response:
        self.gate(request.match_info["name"]).open()
        return _json({})


def _recorded(request: web.Request, raw: bytes, wire: Wire | None = None) -> RecordedRequest:
    is_form = request.content_type == "application/x-www-form-urlencoded"
    body: object = dict(parse_qsl(raw.decode())) if is_form else orjson.loads(raw or b"{}")
    document = body if isinstance(body, dict) else {}
    return RecordedRequest(
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=document,
        last_text=wire.last_text(document) if wire else "",
        api=wire.api if wire else "",
        raw_path=request.raw_path,
        query=dict(request.query),
        raw_body=raw,
    )


def _model_row(model: str | Mapping[str, Any]) -> Mapping[str, Any]:
    row: Mapping[str, Any] = {"id": model} if isinstance(model, str) else model
    return {"object": "model", "owned_by": "fake", **row}


def _refusal(wire: Wire, error: HttpError) -> web.Response:
    body: object = error.body
    headers = dict(error.headers)
    if error.message is not None:
        body = wire.error_body(error.status, error.message)
        headers = {**wire.error_headers(error.status, error.message), **headers}
        headers.setdefault("content-type", "application/json")
    data = body.encode() if isinstance(body, str) else dump_json(body)
    return web.Response(status=error.status, body=data, headers=headers)


def _dropped(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump_json(value), content_type="application/json")
