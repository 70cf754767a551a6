"""What a fake model says: turns, the order they are taken in, and the gates that hold them.

A turn is one answer. Turns are taken in the order they were queued, one per request; a turn with
`when` waits for a request whose last message holds that text. When none is left the default
answers; without a default the request fails loudly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio


@dataclass(frozen=True, slots=True)
class FakeToolCall:
    """A tool call; `arguments` as text goes out as it is, `pieces` cuts it into deltas."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer instead of a stream."""

    status: int
    body: Mapping[str, Any] | str = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer.

    `text` and `thinking`: a string is cut into words, a sequence gives the deltas. `usage`: the
    wire's own object, None for no usage, or absent for counts made up from the turn.
    `finish_reason` None sends none. `stream_error` is sent as a data event after the deltas;
    `disconnect` drops the connection there; `truncate` ends the body there without a stop marker.
    `raw` replaces the whole body; `chunk_bytes` cuts the bytes into writes of that size.
    `gate` names a gate to wait at: before the answer's head, or after `gate_after` deltas.
    `pace_ms` is for benchmarks: the server waits that long before each delta.
    """

    text: str | Sequence[str] = ""
    thinking: str | Sequence[str] = ""
    thinking_field: str = "reasoning_content"
    tool_calls: Sequence[FakeToolCall] = ()
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"made_up": True})
    finish_reason: str | None = "auto"
    http_error: HttpError | None = None
    stream_error: Mapping[str, Any] | None = None
    disconnect: bool = False
    truncate: bool = False
    raw: bytes | None = None
    chunk_bytes: int | None = None
    gate: str | None = None
    gate_after: int | None = None
    pace_ms: int = 0
    when: str | None = None


class Gate:
    """A place where an answer waits until the test lets it go."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._open = anyio.Event()

    def open(self) -> None:
        """Let through whoever waits and whoever comes."""
        self._open.set()

    async def pass_through(self) -> None:
        """Report being here and wait until the gate is open."""
        self.reached.set()
        await self._open.wait()


class ScriptExhausted(LookupError):
    """A request came for which no turn was left."""

    def __init__(self, last_text: str) -> None:
        super().__init__(f"no scripted turn is left for the message {last_text[:80]!r}")


class Script:
    """The turns still to come. `default` answers whenever none fits."""

    def __init__(self, turns: Sequence[Turn] = (), default: Turn | None = None) -> None:
        self.default = default
        self._turns: deque[Turn] = deque(turns)
        self._gates: dict[str, Gate] = {}

    def enqueue(self, *turns: Turn) -> None:
        """Add turns at the end."""
        self._turns.extend(turns)

    @property
    def remaining(self) -> int:
        """How many queued turns have not been taken."""
        return len(self._turns)

    def gate(self, name: str) -> Gate:
        """The gate with this name; the same one for the turn and for the test."""
        return self._gates.setdefault(name, Gate())

    def take(self, last_text: str) -> Turn:
        """The turn for a request whose last message is `last_text`. Raises ScriptExhausted."""
        for turn in self._turns:
            if turn.when is None or turn.when in last_text:
                self._turns.remove(turn)
                return turn
        if self.default is None:
            raise ScriptExhausted(last_text)
        return self.default


def turn_from_json(document: Mapping[str, Any]) -> Turn:
    """A turn from a script file: the same fields; `raw` is text there."""
    fields = dict(document)
    fields["tool_calls"] = tuple(FakeToolCall(**call) for call in fields.get("tool_calls", ()))
    if fields.get("http_error") is not None:
        fields["http_error"] = HttpError(**fields["http_error"])
    if fields.get("raw") is not None:
        fields["raw"] = str(fields["raw"]).encode()
    return Turn(**fields)
