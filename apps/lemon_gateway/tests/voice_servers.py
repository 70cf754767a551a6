"""The services of a phone call as small local servers, and a phone.

Deepgram, ElevenLabs, the two chat services and Twilio's REST interface speak their documented
formats on one port of this machine; `Phone` is the side of Twilio that calls a server and opens its
media stream. Each keeps what it was sent.
"""

from __future__ import annotations

import base64
import json
from asyncio import Queue
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

import aiohttp
import anyio
from aiohttp import web

from lemon_gateway.twilio_signature import signature
from lemon_gateway.voice.audio import FRAME_BYTES
from lemon_gateway.voice.providers import Endpoints

PATH: Final = "/webhooks/twilio/voice"
CALL_SID: Final = "CA0123456789abcdef0123456789abcdef"
STREAM_SID: Final = "MZ0123456789abcdef0123456789abcdef"
CALLER: Final = "+15551230001"
CALLEE: Final = "+15551239999"


def sound_of(text: str) -> bytes:
    """The sound that `SpeechService` makes of `text`: a frame for each word, told by its bytes."""
    return b"".join(bytes([len(word)]) * FRAME_BYTES for word in text.split())


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that a service got."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: object


class Transcription:
    """One connection of a call to the transcription."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self.query = dict(request.query)
        self.headers = dict(request.headers)
        self._socket = socket
        self._texts: Queue[str] = Queue()
        self._sound: Queue[bytes] = Queue()
        self.closed = anyio.Event()

    async def serve(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._texts.put_nowait(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY:
                self._sound.put_nowait(message.data)
        self.closed.set()

    async def text(self) -> object:
        """The next text frame, parsed."""
        with anyio.fail_after(5):
            return json.loads(await self._texts.get())

    async def sound(self) -> bytes:
        """The next binary frame."""
        with anyio.fail_after(5):
            return await self._sound.get()

    async def say(self, words: str, *, is_final: bool = True, kind: str = "Results") -> None:
        """Tell the call what was said."""
        alternatives = [{"transcript": words, "confidence": 0.99, "words": []}]
        await self.send(
            {
                "type": kind,
                "channel_index": [0, 1],
                "is_final": is_final,
                "speech_final": is_final,
                "channel": {"alternatives": alternatives},
            }
        )

    async def send(self, message: object) -> None:
        """Send any message; text goes as it is."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self._socket.send_str(text)

    async def drop(self) -> None:
        """Break the connection."""
        await self._socket.close(code=1011)


def openai_answer(text: str) -> Mapping[str, object]:
    """What OpenAI answers."""
    message = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}


def anthropic_answer(*texts: str) -> Mapping[str, object]:
    """What Anthropic answers, in as many blocks as there are texts."""
    blocks = [{"type": "text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": blocks}


@dataclass
class Services:
    """All of them; `base_url` is where they are."""

    base_url: str = ""
    seen: list[Seen] = field(default_factory=list)
    chat_replies: deque[Mapping[str, object] | int] = field(default_factory=deque)
    speech_replies: deque[int | bytes] = field(default_factory=deque)
    order_status: int = 201
    # Set to an event that is not set, a chat answer or a sound waits for it.
    chat_gate: anyio.Event | None = None
    speech_gate: anyio.Event | None = None
    handshake_status: int | None = None

    def __post_init__(self) -> None:
        self._transcriptions: Queue[Transcription] = Queue()
        self._asked: Queue[Seen] = Queue()

    @property
    def endpoints(self) -> Endpoints:
        """Where the services are, for whoever uses them."""
        return Endpoints(
            deepgram=self.base_url.replace("http", "ws", 1),
            elevenlabs=self.base_url,
            twilio=self.base_url,
            openai=f"{self.base_url}/openai/v1",
            anthropic=self.base_url,
        )

    async def transcription(self) -> Transcription:
        """The next connection to the transcription."""
        with anyio.fail_after(5):
            return await self._transcriptions.get()

    async def asked(self, path: str) -> Seen:
        """The next request whose path ends like this; others before it are passed over."""
        with anyio.fail_after(5):
            while not (seen := await self._asked.get()).path.endswith(path):
                pass
            return seen

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/listen", self._listen)
        app.router.add_post("/v1/text-to-speech/{voice}/stream", self._speak)
        app.router.add_post("/openai/v1/chat/completions", self._chat)
        app.router.add_post("/v1/messages", self._chat)
        app.router.add_post(
            "/2010-04-01/Accounts/{account}/Calls/{call}/Recordings.json", self._order
        )
        return app

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        if self.handshake_status is not None:
            return web.Response(status=self.handshake_status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        transcription = Transcription(request, socket)
        self._transcriptions.put_nowait(transcription)
        await transcription.serve()
        return socket

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        seen = self._note(request, await request.json())
        if self.speech_gate is not None:
            await self.speech_gate.wait()
        reply: int | bytes = 0
        if self.speech_replies:
            reply = self.speech_replies.popleft()
        else:
            assert isinstance(seen.body, dict)
            reply = sound_of(seen.body["text"])
        if isinstance(reply, int):
            return web.json_response({"detail": {"status": "error"}}, status=reply)
        answer = web.StreamResponse(headers={"content-type": "audio/basic"})
        await answer.prepare(request)
        # In pieces that are no frames, as a network cuts them.
        for at in range(0, len(reply), 111):
            await answer.write(reply[at : at + 111])
        await answer.write_eof()
        return answer

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._note(request, await request.json())
        if self.chat_gate is not None:
            await self.chat_gate.wait()
        reply = self.chat_replies.popleft() if self.chat_replies else openai_answer("Fine.")
        if isinstance(reply, int):
            return web.json_response({"error": {"message": "no"}}, status=reply)
        return web.json_response(reply)

    async def _order(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        self._note(request, {name: str(value) for name, value in form.items()})
        return web.json_response({"sid": "RE0123"}, status=self.order_status)

    def _note(self, request: web.Request, body: object) -> Seen:
        seen = Seen(request.path, dict(request.query), dict(request.headers), body)
        self.seen.append(seen)
        self._asked.put_nowait(seen)
        return seen


@asynccontextmanager
async def running_services() -> AsyncIterator[Services]:
    """The services on a free port of this machine."""
    services = Services()
    async with serving_app(services.app()) as port:
        services.base_url = f"http://127.0.0.1:{port}"
        yield services


@asynccontextmanager
async def serving_app(app: web.Application) -> AsyncIterator[int]:
    """Any aiohttp application on a free port; yields the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


# --- the phone ---


@dataclass(frozen=True, slots=True)
class Connect:
    """What the answer to a call says: where the stream goes, and what it is told."""

    url: str
    parameters: Mapping[str, str]


def read_twiml(text: str) -> Connect:
    """The stream in a TwiML document."""
    stream = ElementTree.fromstring(text).find("./Connect/Stream")
    assert stream is not None
    parameters = {p.attrib["name"]: p.attrib["value"] for p in stream.findall("Parameter")}
    return Connect(stream.attrib["url"], parameters)


class MediaStream:
    """The phone's end of a media stream. Marks come back when the test says that all was played."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._sequence = 0
        self._marks: deque[str] = deque()
        self._frames: Queue[Mapping[str, object]] = Queue()
        self.closed = anyio.Event()

    @property
    def close_code(self) -> int | None:
        """Why the server closed the stream."""
        return self._socket.close_code

    async def listen(self) -> None:
        """Take what the server sends until it closes the stream."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._frames.put_nowait(json.loads(message.data))
        self.closed.set()

    async def send(self, message: Mapping[str, object] | str) -> None:
        """Send any message; text goes as it is."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self._socket.send_str(text)

    async def start(
        self,
        parameters: Mapping[str, str],
        *,
        call_sid: str = CALL_SID,
        stream_sid: str = STREAM_SID,
    ) -> None:
        """Begin the stream as Twilio does."""
        await self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "accountSid": "AC0",
            "streamSid": stream_sid,
            "callSid": call_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": dict(parameters),
        }
        await self.send(
            {"event": "start", "sequenceNumber": "1", "start": start, "streamSid": stream_sid}
        )

    async def talk(self, sound: bytes, track: str = "inbound") -> None:
        """Send a frame of the caller's sound."""
        self._sequence += 1
        payload = base64.b64encode(sound).decode()
        media = {"track": track, "chunk": str(self._sequence), "payload": payload}
        await self.send({"event": "media", "streamSid": STREAM_SID, "media": media})

    async def next(self) -> Mapping[str, object]:
        """The next message of the server."""
        with anyio.fail_after(5):
            message = await self._frames.get()
        if message["event"] == "mark":
            mark = message["mark"]
            assert isinstance(mark, dict)
            self._marks.append(mark["name"])
        return message

    async def hear(self) -> bytes:
        """The sound up to the next mark, with nothing else in between."""
        sound = bytearray()
        while (message := await self.next())["event"] != "mark":
            sound += payload_of(message)
        return bytes(sound)

    async def played(self) -> None:
        """Say that everything up to each mark so far has been played."""
        while self._marks:
            name = self._marks.popleft()
            await self.send({"event": "mark", "streamSid": STREAM_SID, "mark": {"name": name}})

    async def stop(self) -> None:
        """Hang up."""
        await self.send({"event": "stop", "streamSid": STREAM_SID, "stop": {"callSid": CALL_SID}})


def payload_of(message: Mapping[str, object]) -> bytes:
    """The sound in a media message."""
    assert message["event"] == "media"
    media = message["media"]
    assert isinstance(media, dict)
    return base64.b64decode(media["payload"])


class Phone:
    """Twilio's side of a number: it tells the server at `base_url` of calls, signed."""

    def __init__(self, base_url: str, auth_token: str) -> None:
        self.base_url, self.auth_token = base_url, auth_token

    async def post(
        self,
        path: str,
        form: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        signed_for: str | None = None,
    ) -> tuple[int, str]:
        """Status and body of a request that is signed for its address, or another one."""
        url = self.base_url + path
        proof = signature(self.auth_token, signed_for or url, tuple(form.items()))
        given = {
            "content-type": "application/x-www-form-urlencoded",
            "x-twilio-signature": proof,
            **(headers or {}),
        }
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, data=urlencode(form), headers=given) as answer,
        ):
            return answer.status, await answer.text()

    async def call(self, caller: str = CALLER, call_sid: str = CALL_SID) -> Connect:
        """Call the number; the answer."""
        form = {"CallSid": call_sid, "From": caller, "To": CALLEE, "CallStatus": "ringing"}
        status, body = await self.post(PATH, form)
        assert status == 200
        return read_twiml(body)

    @asynccontextmanager
    async def stream(self, url: str) -> AsyncIterator[MediaStream]:
        """A media stream to `url`, not begun yet."""
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(url) as socket,
            anyio.create_task_group() as tasks,
        ):
            stream = MediaStream(socket)
            tasks.start_soon(stream.listen)
            yield stream
            tasks.cancel_scope.cancel()
