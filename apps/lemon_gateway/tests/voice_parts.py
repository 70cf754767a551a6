"""A call's partners in memory: what is heard, thought and spoken is what the test says."""

from __future__ import annotations

import json
from asyncio import Queue
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from lemon_core.testing import FakeClock
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.voice_servers import payload_of, sound_of
from lemon_gateway.voice.call import CallParts
from lemon_gateway.voice.calls import Calls, Ticket
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.line import LineClosed
from lemon_gateway.voice.state import CallLimits, Turn
from lemon_gateway.voice.stream import MediaStreams

FAILED = ProviderFailed("request_failed", "service", "gave no answer")


@dataclass
class Ears:
    """Hears what `say` is given; `sound` is what came from the line."""

    failure: Exception | None = None
    sound: Queue[bytes] = field(default_factory=Queue)
    listening: anyio.Event = field(default_factory=anyio.Event)
    gate: anyio.Event | None = None
    heard: Callable[[str, bool], None] | None = None

    async def transcribe(
        self, sound: MemoryObjectReceiveStream[bytes], heard: Callable[[str, bool], None]
    ) -> None:
        self.heard = heard
        self.listening.set()
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            await self.gate.wait()
        async for frame in sound:
            self.sound.put_nowait(frame)

    def say(self, words: str, *, is_final: bool = True) -> None:
        """The caller says something."""
        assert self.heard is not None
        self.heard(words, is_final)


@dataclass
class Mind:
    """Answers from a list; a failure in it is raised."""

    answers: deque[str | Exception] = field(default_factory=deque)
    asked: list[Sequence[Turn]] = field(default_factory=list)
    gate: anyio.Event | None = None

    async def answer(self, turns: Sequence[Turn]) -> str:
        self.asked.append(turns)
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.popleft() if self.answers else "Fine."
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Mouth:
    """A frame for each word; `failures` are raised after as many bytes as they say."""

    failures: deque[tuple[int, Exception]] = field(default_factory=deque)
    spoken: list[str] = field(default_factory=list)
    gate: anyio.Event | None = None
    sound: Callable[[str], bytes] = sound_of

    async def speak(self, text: str, take: Callable[[bytes], None]) -> None:
        self.spoken.append(text)
        if self.gate is not None:
            await self.gate.wait()
        sound = self.sound(text)
        if self.failures:
            size, failure = self.failures.popleft()
            take(sound[:size])
            raise failure
        take(sound)


class Socket:
    """The server's end of a media stream; the test plays the phone."""

    def __init__(self) -> None:
        self.inbox: Queue[str | None] = Queue()
        self.outbox: Queue[Mapping[str, object]] = Queue()
        self.close_code: int | None = None
        self.closed = anyio.Event()
        self.is_broken = False

    async def receive(self) -> str | None:
        return None if self.closed.is_set() else await self.inbox.get()

    async def send(self, text: str) -> None:
        if self.is_broken:
            raise LineClosed
        self.outbox.put_nowait(json.loads(text))

    async def close(self, code: int) -> None:
        self.close_code = code
        self.closed.set()

    def put(self, message: Mapping[str, object] | str | None) -> None:
        """The phone sends this; None hangs up."""
        text = message if isinstance(message, str | None) else json.dumps(message)
        self.inbox.put_nowait(text)

    async def next(self) -> Mapping[str, object]:
        """The next message to the phone."""
        with anyio.fail_after(5):
            return await self.outbox.get()

    async def hear(self) -> tuple[bytes, str]:
        """The sound up to the next mark, and its name."""
        sound = bytearray()
        while (message := await self.next())["event"] != "mark":
            sound += payload_of(message)
        mark = message["mark"]
        assert isinstance(mark, dict)
        return bytes(sound), mark["name"]


@dataclass
class Parts:
    """All of them; `recorded` are the calls whose recording was ordered."""

    ears: Ears = field(default_factory=Ears)
    mind: Mind = field(default_factory=Mind)
    mouth: Mouth = field(default_factory=Mouth)
    recorded: list[str] = field(default_factory=list)
    record_failure: Exception | None = None
    greeting: str = "Hello there"
    sound_format: str = "ulaw_8000"
    base_urls: list[str] = field(default_factory=list)

    def of(self, base_url: str) -> CallParts:
        """What a call is made of."""
        self.base_urls.append(base_url)
        return CallParts(
            ears=self.ears,
            mind=self.mind,
            mouth=self.mouth,
            record=self._record,
            greeting=self.greeting,
            sound_format=self.sound_format,
        )

    async def _record(self, call_sid: str) -> None:
        self.recorded.append(call_sid)
        if self.record_failure is not None:
            raise self.record_failure


# --- a stream that is served ---

BASE_URL = "https://lemon.example"
TICKET = Ticket("CA1", "+15551230001", "+15551239999", BASE_URL)
PAYLOAD = "BQUF"


def start(call_sid: str = "CA1", **parameters: str) -> Mapping[str, object]:
    inner = {"streamSid": "MZ1", "callSid": call_sid, "customParameters": parameters}
    return {"event": "start", "start": inner, "streamSid": "MZ1"}


def mark(name: str) -> Mapping[str, object]:
    return {"event": "mark", "mark": {"name": name}}


@dataclass
class Line:
    """A stream that is being served."""

    socket: Socket
    parts: Parts
    calls: Calls
    clock: FakeClock
    ended: anyio.Event

    async def open(self) -> None:
        """Let the call in, hear its greeting, and say that it was played."""
        self.socket.put(start(token=self.calls.admit(TICKET)))
        assert await self.socket.hear() == (sound_of(self.parts.greeting), "utterance-1")
        self.socket.put(mark("utterance-1"))
        await settle()


@asynccontextmanager
async def serving(
    parts: Parts | None = None,
    query: Mapping[str, str] | None = None,
    *,
    ticket: Ticket | None = None,
    calls: Calls | None = None,
    limits: CallLimits | None = None,
) -> AsyncIterator[Line]:
    clock = FakeClock()
    line = Line(Socket(), parts or Parts(), calls or Calls(clock), clock, anyio.Event())
    asked = dict(query or {})
    if ticket is not None:
        asked["token"] = line.calls.admit(ticket)

    async def serve() -> None:
        streams = MediaStreams(
            line.calls, line.parts.of, limits or CallLimits(5_000, 600_000), clock
        )
        await streams.serve(line.socket, asked)
        line.ended.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield line
            tasks.cancel_scope.cancel()
