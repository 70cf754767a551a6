"""A phone that listens to its watch: one call to a server, and when each of its frames came.

The services of the call are here too, in the phone's own process: the sound of the greeting comes
at once and is as long as the call, and the transcription only takes the time of what it gets.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

import anyio
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web

from lemon_gateway.twilio_signature import signature
from lemon_gateway.voice.audio import FRAME_BYTES, FRAME_MS
from lemon_gateway.voice.frames import media_message
from tools.bench.processes import BenchError
from tools.bench.voice_parts import AUTH_TOKEN

PATH: Final = "/webhooks/twilio/voice"
FRAME_S: Final = FRAME_MS / 1000
STREAM: Final = "MZbench"


@dataclass(slots=True)
class Call:
    """When what happened, in seconds of `time.perf_counter`."""

    spoken_s: list[float] = field(default_factory=list)
    """Each frame of the server's as it came."""
    sent_s: list[float] = field(default_factory=list)
    """Each frame of the phone's as it went."""
    heard_s: list[float] = field(default_factory=list)
    """Each of those as it came to the transcription."""

    @property
    def margins_ms(self) -> list[float]:
        """How long before it is heard each frame came: less than nothing is a gap.

        The first one is heard at once, each other one 20 ms after the one before it.
        """
        margins, heard_s = [], self.spoken_s[0]
        for came_s in self.spoken_s:
            margins.append((heard_s - came_s) * 1000)
            heard_s = max(heard_s, came_s) + FRAME_S
        return margins

    @property
    def delays_ms(self) -> list[float]:
        """From the phone through the server to the transcription."""
        pairs = zip(self.sent_s, self.heard_s, strict=False)
        return [(heard - sent) * 1000 for sent, heard in pairs]


class Services:
    """What the server of calls asks for."""

    def __init__(self, seconds: float) -> None:
        self.call = Call()
        self._sound = b"\x7f" * (FRAME_BYTES * round(seconds / FRAME_S))

    def app(self) -> web.Application:
        """The services on one port."""
        app = web.Application()
        app.router.add_get("/v1/listen", self._listen)
        app.router.add_post("/v1/text-to-speech/{voice}/stream", self._speak)
        app.router.add_post("/2010-04-01/{rest:.*}", self._order)
        return app

    async def _listen(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                self.call.heard_s.append(time.perf_counter())
        return socket

    async def _speak(self, request: web.Request) -> web.Response:
        return web.Response(body=self._sound)

    async def _order(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=201)


@asynccontextmanager
async def serving(services: Services) -> AsyncIterator[str]:
    """The services on a free port; yields their address."""
    runner = web.AppRunner(services.app(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


async def call(base_url: str, services: Services, number: int) -> Call:
    """Call the server, talk until its greeting has come to its end, and hang up."""
    services.call = Call()
    async with ClientSession() as http:
        url, parameters = await _answered(http, base_url, f"CA{number}")
        async with http.ws_connect(url) as socket, anyio.create_task_group() as tasks:
            start = {"streamSid": STREAM, "callSid": f"CA{number}", "customParameters": parameters}
            await socket.send_json({"event": "start", "start": start, "streamSid": STREAM})
            tasks.start_soon(_talk, socket, services.call)
            await _listen(socket, services.call)
            tasks.cancel_scope.cancel()
    return services.call


async def _answered(
    http: ClientSession, base_url: str, call_sid: str
) -> tuple[str, Mapping[str, str]]:
    form = {"CallSid": call_sid, "From": "+15550001", "To": "+15550002"}
    proof = signature(AUTH_TOKEN, base_url + PATH, tuple(form.items()))
    headers = {
        "x-twilio-signature": proof,
        "content-type": "application/x-www-form-urlencoded",
    }
    async with http.post(base_url + PATH, data=urlencode(form), headers=headers) as answer:
        text = await answer.text()
        if answer.status != 200:
            raise BenchError(f"the call was answered with {answer.status}: {text}")
    stream = ElementTree.fromstring(text).find("./Connect/Stream")
    assert stream is not None
    return stream.attrib["url"], {p.attrib["name"]: p.attrib["value"] for p in stream}


async def _talk(socket: ClientWebSocketResponse, seen: Call) -> None:
    """A frame every 20 ms, late ones made up for, as a phone sends them."""
    frame, due_s = media_message(STREAM, b"\x55" * FRAME_BYTES), time.perf_counter()
    while True:
        due_s += FRAME_S
        await anyio.sleep(max(0.0, due_s - time.perf_counter()))
        seen.sent_s.append(time.perf_counter())
        await socket.send_str(frame)


async def _listen(socket: ClientWebSocketResponse, seen: Call) -> None:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            event = json.loads(message.data)["event"]
            if event == "mark":
                return
            seen.spoken_s.append(time.perf_counter())
    raise BenchError("the server hung up in the middle of its greeting")
