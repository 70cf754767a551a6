"""What a fake model says: turns, the order they are taken in, and the gates that hold them.

A turn is one answer. Turns are taken in the order they were queued, one per request; a turn with
`when` waits for a request whose last message holds that text. When none is left the default
answers; without a default the request fails loudly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio


@dataclass(frozen=True, slots=True)
class FakeToolCall:
    """A tool call; `arguments` as text goes out as it is, `pieces` cuts it into deltas."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class FakeUsage:
    """Token counts in disjoint buckets; each wire reports them in its own way.

    `reasoning` is a part of `output`.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer instead of a stream; `message` is put into the error body of the wire API."""

    status: int
    body: Mapping[str, Any] | str = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None


MADE_UP: Mapping[str, Any] = {"made_up": True}
Stop = Literal["auto", "stop", "length", "tool_use", "filtered"]
# Where the writes of an answer are cut: inside a UTF-8 character, inside CR LF, inside a JSON
# escape.
Cut = Literal["character", "line_end", "escape"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer.

    `text` and `thinking`: a string is cut into words, a sequence gives the deltas; a signature or
    a redacted block goes where the wire has a place for it. `usage`: a FakeUsage, the wire's own
    object, None for no usage, or absent for counts made up from the turn. `stop` is why the answer
    ends; `finish_reason` gives the wire's own word instead, None sends none.

    `http_error` answers instead of a stream. `stream_error` (`message`, `code` as HTTP status) is
    sent as an error event after the deltas; `disconnect` drops the connection there,
    `disconnect_after_bytes` after so many bytes; `truncate` ends the body after the deltas without
    a stop marker. `raw` replaces the whole body.

    `chunk_bytes` cuts the bytes into writes of that size, `cut` at every place of that kind;
    `crlf` ends lines with CR LF, `ascii` escapes every other character in the JSON, `pings` sends
    a keep-alive before each delta, `gzip` compresses.

    `gate` names a gate to wait at: before the answer's head, or after `gate_after` deltas.
    `pace_ms` is for benchmarks: the server waits that long before each delta.
    """

    text: str | Sequence[str] = ""
    thinking: str | Sequence[str] = ""
    thinking_field: str = "reasoning_content"
    tool_calls: Sequence[FakeToolCall] = ()
    usage: FakeUsage | Mapping[str, Any] | None = field(default_factory=lambda: MADE_UP)
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
    thinking_signature: str | None = None
    redacted_thinking: str | None = None
    stop: Stop = "auto"
    disconnect_after_bytes: int | None = None
    cut: Cut | None = None
    crlf: bool = False
    ascii: bool = False
    pings: bool = False
    gzip: bool = False

    @property
    def stop_reason(self) -> Literal["stop", "length", "tool_use", "filtered"]:
        """Why the answer ends, in plain words."""
        if self.stop == "auto":
            return "tool_use" if self.tool_calls else "stop"
        return self.stop

    def counted(self, delta_count: int) -> FakeUsage | Mapping[str, Any] | None:
        """The usage to report: as given, or made up from the number of deltas."""
        if self.usage == MADE_UP:
            return FakeUsage(input=10, output=max(delta_count, 1))
        return self.usage


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
    """A turn from a script file: the same fields; `raw` is text there, and `fake_usage` is
    the object of a FakeUsage."""
    fields = dict(document)
    fields["tool_calls"] = tuple(FakeToolCall(**call) for call in fields.get("tool_calls", ()))
    if "fake_usage" in fields:
        fields["usage"] = FakeUsage(**fields.pop("fake_usage"))
    if fields.get("http_error") is not None:
        fields["http_error"] = HttpError(**fields["http_error"])
    if fields.get("raw") is not None:
        fields["raw"] = str(fields["raw"]).encode()
    return Turn(**fields)
