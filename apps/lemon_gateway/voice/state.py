"""What a call does next: pure state, without sound, sockets or a clock.

Each method is something that happened, with the time of a monotonic clock in milliseconds, and
returns what is to be done about it, in order. The call speaks one utterance at a time and asks the
model one question at a time; what comes meanwhile waits. An utterance is over when its mark comes
back, which is when it has been played and not when it was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

HISTORY_TURNS: Final = 10
MAX_QUESTION: Final = 4_000
MAX_QUEUED_REPLIES: Final = 16
# How long a mark may be late before the call goes on without it.
MARK_GRACE_MS: Final = 5_000

APOLOGY: Final = "I'm sorry, I could not think of an answer just now. Could you say that again?"
NO_KEY_APOLOGY: Final = "I'm sorry, I am not set up to answer calls yet. Please try again later."
SILENCE_GOODBYE: Final = "I have not heard anything for a while, so I will hang up. Goodbye!"
LIMIT_GOODBYE: Final = "We have reached the time limit of this call. Thank you, and goodbye!"


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's words."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Utterance:
    """Words to be spoken; `until_ms` is when they should have been played, once they are sent."""

    number: int
    text: str
    until_ms: int | None = None

    @property
    def mark(self) -> str:
        """The name of the mark behind them."""
        return f"utterance-{self.number}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model; the last turn is the caller's."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """Speak, and put the utterance's mark behind it."""

    utterance: Utterance


@dataclass(frozen=True, slots=True)
class Silence:
    """Stop speaking, and have dropped what was not played yet."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the line in a moment."""


Action = Ask | Say | Silence | HangUp


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a call may be silent, and how long it may last."""

    silence_ms: int
    duration_ms: int


@dataclass(slots=True)
class CallState:
    """One call. It is `leaving` from its goodbye on: then nothing is asked or answered any more."""

    call_sid: str
    caller: str
    callee: str
    limits: CallLimits
    started_at_ms: int
    last_activity_at_ms: int = field(init=False)
    history: deque[Turn] = field(default_factory=lambda: deque(maxlen=HISTORY_TURNS))
    response_queue: deque[str] = field(default_factory=deque)
    current_utterance: Utterance | None = None
    is_processing: bool = False
    leaving: bool = False
    _unasked: str = ""
    _utterances: int = 0

    def __post_init__(self) -> None:
        self.last_activity_at_ms = self.started_at_ms

    @property
    def session_key(self) -> str:
        """The conversation of this caller."""
        return f"voice:{self.caller}"

    @property
    def is_speaking(self) -> bool:
        """Whether an utterance has neither been played nor dropped."""
        return self.current_utterance is not None

    def greet(self, text: str, now_ms: int) -> Sequence[Action]:
        """The call begins with `text`; an empty greeting says nothing."""
        return self._reply(text, now_ms)

    def heard(self, text: str, *, is_final: bool, now_ms: int) -> Sequence[Action]:
        """The caller said something. Interim words are only good for interrupting."""
        text = text.strip()
        if not text or self.leaving:
            return ()
        self.last_activity_at_ms = now_ms
        if not is_final:
            return self._interrupted() if self.is_speaking else ()
        self._unasked = f"{self._unasked} {text}".strip()[-MAX_QUESTION:]
        return () if self.is_processing else self._ask()

    def answered(self, text: str, now_ms: int) -> Sequence[Action]:
        """The model answered."""
        return self._processed(text, now_ms)

    def unanswered(self, code: str, now_ms: int) -> Sequence[Action]:
        """The model gave no answer: the caller is told so."""
        return self._processed(
            NO_KEY_APOLOGY if code == "missing_api_key" else APOLOGY, now_ms, is_turn=False
        )

    def sent(self, number: int, until_ms: int) -> None:
        """All of an utterance and its mark are on the line and should be played by `until_ms`."""
        current = self.current_utterance
        if current is not None and current.number == number:
            self.current_utterance = replace(current, until_ms=until_ms)

    def played(self, mark: str, now_ms: int) -> Sequence[Action]:
        """A mark came back; that of an utterance that was dropped says nothing new."""
        current = self.current_utterance
        if current is None or current.mark != mark:
            return ()
        return self._finished(now_ms)

    def not_spoken(self, number: int) -> Sequence[Action]:
        """An utterance could not be spoken; it does not count as speech."""
        current = self.current_utterance
        if current is None or current.number != number:
            return ()
        return self._finished(self.last_activity_at_ms)

    def ticked(self, now_ms: int) -> Sequence[Action]:
        """Some time has passed: a call that is silent or too long comes to its goodbye."""
        if self.leaving:
            return ()
        if now_ms - self.started_at_ms >= self.limits.duration_ms:
            return self._leave(LIMIT_GOODBYE, now_ms)
        current = self.current_utterance
        if current is not None:
            until = current.until_ms
            # A mark that got lost must not keep the call quiet to its very end.
            overdue = until is not None and now_ms - until > MARK_GRACE_MS
            return self._finished(now_ms) if overdue else ()
        silent_ms = now_ms - self.last_activity_at_ms
        if not self.is_processing and silent_ms >= self.limits.silence_ms:
            return self._leave(SILENCE_GOODBYE, now_ms)
        return ()

    def _processed(self, text: str, now_ms: int, *, is_turn: bool = True) -> Sequence[Action]:
        self.is_processing = False
        if self.leaving:
            return ()
        if is_turn and text.strip():
            self.history.append(Turn("assistant", text.strip()))
        return (*self._reply(text, now_ms), *self._ask())

    def _ask(self) -> Sequence[Action]:
        if not self._unasked:
            return ()
        self.history.append(Turn("user", self._unasked))
        self._unasked = ""
        self.is_processing = True
        return (Ask(tuple(self.history)),)

    def _reply(self, text: str, now_ms: int) -> Sequence[Action]:
        text = text.strip()
        if not text:
            return ()
        self.last_activity_at_ms = now_ms
        if self.is_speaking:
            if len(self.response_queue) < MAX_QUEUED_REPLIES:
                self.response_queue.append(text)
            return ()
        return (self._say(text),)

    def _say(self, text: str) -> Say:
        self._utterances += 1
        self.current_utterance = Utterance(self._utterances, text)
        return Say(self.current_utterance)

    def _finished(self, now_ms: int) -> Sequence[Action]:
        self.current_utterance = None
        self.last_activity_at_ms = now_ms
        return (self._say(self.response_queue.popleft()),) if self.response_queue else ()

    def _interrupted(self) -> Sequence[Action]:
        self.current_utterance = None
        self.response_queue.clear()
        return (Silence(),)

    def _leave(self, goodbye: str, now_ms: int) -> Sequence[Action]:
        stopped = self._interrupted() if self.is_speaking else ()
        self.leaving = True
        return (*stopped, *self._reply(goodbye, now_ms), HangUp())
