"""A turn in the wire format of chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lemon_ai.testing.script import FakeToolCall, Turn
from lemon_ai.text import dump_json

_WORDS = re.compile(r"\S*\s*")
DONE = b"data: [DONE]\n\n"
CREATED_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class ChatWire:
    """The bytes of an answer: one piece per delta, then what closes it."""

    deltas: tuple[bytes, ...]
    closing: bytes


def render(turn: Turn, model: str) -> ChatWire:
    """The server-sent events of this turn."""
    if turn.raw is not None:
        return ChatWire((), turn.raw)
    deltas = tuple(_chunk(model, {"delta": d, "finish_reason": None}) for d in _deltas(turn))
    return ChatWire(deltas, b"".join(_closing(turn, model, len(deltas))))


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    """The bytes cut into pieces of `size`."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _deltas(turn: Turn) -> Iterator[Mapping[str, Any]]:
    first: dict[str, Any] = {"role": "assistant"}
    for piece in _pieces(turn.thinking):
        yield {**first, turn.thinking_field: piece}
        first = {}
    for piece in _pieces(turn.text):
        yield {**first, "content": piece}
        first = {}
    for index, call in enumerate(turn.tool_calls):
        for delta in _call_deltas(index, call):
            yield {**first, "tool_calls": [delta]}
            first = {}


def _pieces(text: str | Sequence[str]) -> Sequence[str]:
    return [w for w in _WORDS.findall(text) if w] if isinstance(text, str) else text


def _call_deltas(index: int, call: FakeToolCall) -> Iterator[Mapping[str, Any]]:
    raw = call.arguments if isinstance(call.arguments, str) else dump_json(call.arguments).decode()
    yield {
        "index": index,
        "id": call.id or f"call_{index + 1}",
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    size = max(-(-len(raw) // call.pieces), 1)
    for start in range(0, len(raw), size):
        yield {"index": index, "function": {"arguments": raw[start : start + size]}}


def _closing(turn: Turn, model: str, delta_count: int) -> Iterator[bytes]:
    if turn.stream_error is not None:
        yield b"data: " + dump_json({"error": turn.stream_error}) + b"\n\n"
    if turn.stream_error is not None or turn.truncate or turn.disconnect:
        return
    reason = turn.finish_reason
    if reason == "auto":
        reason = "tool_calls" if turn.tool_calls else "stop"
    if reason is not None:
        yield _chunk(model, {"delta": {}, "finish_reason": reason})
    if turn.usage is not None:
        made_up = turn.usage.get("made_up")
        yield _chunk(model, None, usage=_usage(delta_count) if made_up else turn.usage)
    yield DONE


def _usage(delta_count: int) -> Mapping[str, Any]:
    prompt, completion = 10, max(delta_count, 1)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _chunk(
    model: str, choice: Mapping[str, Any] | None, usage: Mapping[str, Any] | None = None
) -> bytes:
    document: dict[str, Any] = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": CREATED_S,
        "model": model,
        "choices": [] if choice is None else [{"index": 0, **choice}],
    }
    if usage is not None:
        document["usage"] = usage
    return b"data: " + dump_json(document) + b"\n\n"
