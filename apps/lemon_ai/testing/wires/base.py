"""What a wire API is to the fake server: routes, a renderer of turns, and its form of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lemon_ai.testing.script import FakeToolCall, Turn
from lemon_ai.text import dump_json

_WORDS = re.compile(r"\S*\s*")
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The bytes of an answer: one piece per delta, then what closes it.

    `opening` is what the wire sends before the first delta.
    """

    deltas: tuple[bytes, ...]
    closing: bytes
    opening: bytes = b""

    def whole(self) -> bytes:
        """All bytes, joined."""
        return b"".join((self.opening, *self.deltas, self.closing))


@dataclass(frozen=True, slots=True)
class Wire:
    """One wire API. A new one is a module beside this with such a row, listed in `__init__`.

    `routes` are path patterns of POST; a `{model}` in one gives the model's id, else the body's
    `model` does. `base_path` is what a client's base URL ends with. `error_body` is the document
    of a refused request, `last_text` the text of a request's last message, `key_of` the key that
    the headers (lower-case names) carry. `ping` is the wire's keep-alive; only for `is_sse` wires
    can lines end with CR LF and JSON be escaped.
    """

    api: str
    routes: tuple[str, ...]
    base_path: str
    render: Callable[[Turn, str], Rendered]
    error_body: Callable[[int, str], Json]
    last_text: Callable[[Json], str]
    key_of: Callable[[Mapping[str, str]], str | None]
    error_headers: Callable[[int, str], Mapping[str, str]] = lambda status, message: {}
    content_type: str = "text/event-stream"
    ping: bytes = b": keep-alive\n\n"
    is_sse: bool = True


def sse(document: Json, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump_json(document) + b"\n\n"


def pieces(text: str | Sequence[str]) -> Sequence[str]:
    """The deltas of a text: words, or as given."""
    return [w for w in _WORDS.findall(text) if w] if isinstance(text, str) else text


def joined(text: str | Sequence[str]) -> str:
    """The whole of a text that may be given in deltas."""
    return text if isinstance(text, str) else "".join(text)


def argument_text(call: FakeToolCall) -> str:
    """The argument JSON of a call, or the text that stands in its place."""
    return call.arguments if isinstance(call.arguments, str) else dump_json(call.arguments).decode()


def argument_pieces(call: FakeToolCall) -> Iterator[str]:
    """The argument JSON in as many deltas as the call wants."""
    raw = argument_text(call)
    size = max(-(-len(raw) // call.pieces), 1)
    for start in range(0, len(raw), size):
        yield raw[start : start + size]


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The bearer key of a request."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else None


def text_of(content: object) -> str:
    """The text of a message's content: a string, or a list of parts with `text`."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(p.get("text") or "") for p in parts if isinstance(p, dict))


def last_message_text(body: Json) -> str:
    """`last_text` of wires with a list `messages`."""
    messages = body.get("messages") or [{}]
    return text_of(messages[-1].get("content"))
