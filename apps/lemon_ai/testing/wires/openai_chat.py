"""Turns in the wire format of chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lemon_ai.testing.script import FakeToolCall, FakeUsage, Turn
from lemon_ai.testing.wires.base import (
    Json,
    Rendered,
    Wire,
    argument_pieces,
    bearer_of,
    last_message_text,
    pieces,
    sse,
)

DONE = b"data: [DONE]\n\n"
CREATED_S = 1_700_000_000
_STOP = {
    "stop": "stop",
    "length": "length",
    "tool_use": "tool_calls",
    "filtered": "content_filter",
}


def render(turn: Turn, model: str) -> Rendered:
    """The server-sent events of this turn."""
    if turn.raw is not None:
        return Rendered((), turn.raw)
    deltas = tuple(_chunk(model, {"delta": d, "finish_reason": None}) for d in _deltas(turn))
    return Rendered(deltas, b"".join(_closing(turn, model, len(deltas))))


def _deltas(turn: Turn) -> Iterator[Json]:
    first: dict[str, Any] = {"role": "assistant"}
    for piece in pieces(turn.thinking):
        yield {**first, turn.thinking_field: piece}
        first = {}
    for piece in pieces(turn.text):
        yield {**first, "content": piece}
        first = {}
    for index, call in enumerate(turn.tool_calls):
        for delta in _call_deltas(index, call):
            yield {**first, "tool_calls": [delta]}
            first = {}


def _call_deltas(index: int, call: FakeToolCall) -> Iterator[Json]:
    yield {
        "index": index,
        "id": call.id or f"call_{index + 1}",
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    for piece in argument_pieces(call):
        yield {"index": index, "function": {"arguments": piece}}


def _closing(turn: Turn, model: str, delta_count: int) -> Iterator[bytes]:
    if turn.stream_error is not None:
        yield sse({"error": turn.stream_error})
    if turn.stream_error is not None or turn.truncate or turn.disconnect:
        return
    reason = _STOP[turn.stop_reason] if turn.finish_reason == "auto" else turn.finish_reason
    if reason is not None:
        yield _chunk(model, {"delta": {}, "finish_reason": reason})
    usage = turn.counted(delta_count)
    if usage is not None:
        yield _chunk(model, None, usage=_usage(usage))
    yield DONE


def _usage(usage: FakeUsage | Json) -> Json:
    if isinstance(usage, Mapping):
        return usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    document: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
    }
    if usage.cache_read or usage.cache_write:
        document["prompt_tokens_details"] = {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        }
    if usage.reasoning:
        document["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return document


def _chunk(model: str, choice: Json | None, usage: Json | None = None) -> bytes:
    document: dict[str, Any] = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": CREATED_S,
        "model": model,
        "choices": [] if choice is None else [{"index": 0, **choice}],
    }
    if usage is not None:
        document["usage"] = usage
    return sse(document)


def openai_error(status: int, message: str) -> Json:
    """The error document of OpenAI's services."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


WIRE = Wire(
    api="openai_completions",
    routes=("/v1/chat/completions",),
    base_path="/v1",
    render=render,
    error_body=openai_error,
    last_text=last_message_text,
    key_of=bearer_of,
)
