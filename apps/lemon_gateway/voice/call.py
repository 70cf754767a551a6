"""One phone call: what comes from the line goes into its state, and what that decides is done.

The state (`state.py`) is plain; here are the tasks around it. One hears, one thinks, one speaks,
one looks at the time. Only the speaking task writes to the line, so that what is dropped and what
follows stay in order; an interruption cancels its utterance, and the word to drop what was sent
goes next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.single_errors import single_errors
from lemon_gateway.voice.audio import FRAME_MS, Framer
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.frames import Frame, InboundAudio, MarkReached, StreamStart, StreamStop
from lemon_gateway.voice.line import LineClosed, MediaLine, Rhythm
from lemon_gateway.voice.state import (
    Action,
    Ask,
    CallState,
    HangUp,
    Say,
    Silence,
    Turn,
    Utterance,
)

TICK_MS: Final = 5_000
HANG_UP_MS: Final = 3_000
# Sound for the transcription while that connects; then the oldest is worth the least.
HEARD_FRAMES: Final = 10_000 // FRAME_MS
# An answer of 150 tokens takes less than a minute; what is longer than two is cut.
SPOKEN_FRAMES: Final = 120_000 // FRAME_MS

log = get_logger("lemon_gateway.voice.call")


class Ears(Protocol):
    """Transcription."""

    async def transcribe(
        self, sound: MemoryObjectReceiveStream[bytes], heard: Callable[[str, bool], None]
    ) -> None:
        """Give `heard` the words in `sound`, and whether they are final."""


class Mind(Protocol):
    """The model."""

    async def answer(self, turns: Sequence[Turn]) -> str:
        """The answer to the last turn; raises `ProviderFailed`."""


class Mouth(Protocol):
    """Speech."""

    async def speak(self, text: str, take: Callable[[bytes], None]) -> None:
        """Give the sound of `text` to `take`; raises `ProviderFailed`."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """What calls are made of; `sound_format` is what the mouth's sound comes in."""

    ears: Ears
    mind: Mind
    mouth: Mouth
    record: Callable[[str], Awaitable[None]]
    greeting: str
    sound_format: str


class CallSession:
    """A call from its first word to its last; `run` it once."""

    def __init__(self, state: CallState, parts: CallParts, line: MediaLine, clock: Clock) -> None:
        self.state = state
        self.rhythm = Rhythm(clock)
        self.frames_heard = 0
        self._parts, self._line, self._clock = parts, line, clock
        self._sound_in, self._sound_out = anyio.create_memory_object_stream[bytes](HEARD_FRAMES)
        # One question is open at a time.
        self._ask, self._asked = anyio.create_memory_object_stream[Ask](1)
        self._speaking: anyio.CancelScope | None = None
        self._must_clear = False
        self._to_speak, self._leaving, self._started = anyio.Event(), anyio.Event(), anyio.Event()

    async def run(self) -> None:
        """Talk until the call has said goodbye; cancel it when the line is gone."""
        with self._sound_in, self._sound_out, self._ask, self._asked:
            async with anyio.create_task_group() as tasks:
                for task in (self._hear, self._think, self._speak, self._watch, self._record):
                    tasks.start_soon(task)
                self._do(self.state.greet(self._parts.greeting, self._now()))
                await self._leaving.wait()
                await self._clock.sleep(HANG_UP_MS)
                tasks.cancel_scope.cancel()

    async def take(self, frame: Frame) -> bool:
        """Take a frame of the stream; False when it ends the call. Raises `LineClosed`."""
        match frame:
            case InboundAudio(sound):
                self._take_sound(sound)
            case MarkReached(name):
                self._do(self.state.played(name, self._now()))
            case StreamStart():
                await self._line.bind(frame.stream_sid)
                self._started.set()
            case StreamStop():
                return False
            case _:
                assert_never(frame)
        return True

    def _take_sound(self, sound: bytes) -> None:
        self.frames_heard += 1
        try:
            self._sound_in.send_nowait(sound)
        except anyio.WouldBlock:
            self._sound_out.receive_nowait()
            self._sound_in.send_nowait(sound)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # nobody transcribes any more

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Ask():
                    self._ask.send_nowait(action)
                case Say():
                    self._to_speak.set()
                case Silence():
                    self._must_clear = True
                    if self._speaking is not None:
                        self._speaking.cancel()
                    self._to_speak.set()
                case HangUp():
                    self._leaving.set()
                case _:
                    assert_never(action)

    def _heard(self, words: str, is_final: bool) -> None:
        self._do(self.state.heard(words, is_final=is_final, now_ms=self._now()))

    async def _hear(self) -> None:
        with self._sound_out, self._contained("voice.transcription_failed"):
            await self._parts.ears.transcribe(self._sound_out, self._heard)

    async def _think(self) -> None:
        async for question in self._asked:
            code = "request_failed"
            try:
                text = await self._parts.mind.answer(question.turns)
            except ProviderFailed as exc:
                log.warning("voice.no_answer", code=exc.code, error=str(exc))
                code = exc.code
            except Exception:  # a fault in here must not leave the caller without a word
                log.exception("voice.no_answer", call_sid=self.state.call_sid)
            else:
                self._do(self.state.answered(text, self._now()))
                continue
            self._do(self.state.unanswered(code, self._now()))

    async def _speak(self) -> None:
        """The one task that writes to the line: what is current in the state, as it changes."""
        last = 0
        while True:
            await self._to_speak.wait()
            self._to_speak = anyio.Event()
            with suppress(LineClosed):
                if self._must_clear:
                    self._must_clear = False
                    await self._line.clear()
            current = self.state.current_utterance
            if current is not None and current.number > last:
                last = current.number
                await self._utter(current)

    async def _utter(self, utterance: Utterance) -> None:
        is_sent = False
        with anyio.CancelScope() as self._speaking, suppress(LineClosed), single_errors():
            is_sent = await self._send(utterance)
        cancelled, self._speaking = self._speaking.cancel_called, None
        if not (is_sent or cancelled):
            self._do(self.state.not_spoken(utterance.number))

    async def _send(self, utterance: Utterance) -> bool:
        """Speak, and tell whether there was anything to hear."""
        into, frames = anyio.create_memory_object_stream[bytes](SPOKEN_FRAMES)
        has_begun = False
        with into, frames:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._synthesize, utterance.text, into)
                async for frame in frames:
                    if not has_begun:
                        has_begun = True
                        self.rhythm.begin()
                    await self.rhythm.wait()
                    await self._line.frame(frame)
        if has_begun:
            # First the state: the mark may be back before this task goes on.
            self.state.sent(utterance.number, self.rhythm.ends_at_ms)
            await self._line.mark(utterance.mark)
        return has_begun

    async def _synthesize(self, text: str, into: MemoryObjectSendStream[bytes]) -> None:
        framer = Framer(self._parts.sound_format)
        with into, self._contained("voice.speech_failed"):
            try:
                await self._parts.mouth.speak(text, lambda piece: _put(into, framer.feed(piece)))
            finally:
                _put(into, framer.end())
        if framer.kind in ("mp3", "other"):
            log.warning(
                "voice.sound_not_usable", kind=framer.kind, ordered=self._parts.sound_format
            )

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(TICK_MS)
            self._do(self.state.ticked(self._now()))

    async def _record(self) -> None:
        await self._started.wait()
        with self._contained("voice.not_recorded"):
            await self._parts.record(self.state.call_sid)

    @contextmanager
    def _contained(self, event: str) -> Iterator[None]:
        """Keep a failure of one service from ending the call."""
        try:
            yield
        except ProviderFailed as exc:
            log.warning(event, call_sid=self.state.call_sid, code=exc.code, error=str(exc))
        except Exception:  # the caller is still on the line, and the rest of the call works
            log.exception(event, call_sid=self.state.call_sid)

    def _now(self) -> int:
        return self._clock.monotonic_ms()


def _put(into: MemoryObjectSendStream[bytes], frames: Sequence[bytes]) -> None:
    """As many of `frames` as there is room for, which is all of any answer but an absurd one."""
    with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
        for frame in frames:
            into.send_nowait(frame)
