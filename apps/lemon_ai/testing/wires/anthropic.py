"""Turns in the wire format of Anthropic's Messages API."""

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

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_use": "tool_use",
    "filtered": "refusal",
}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def render(turn: Turn, model: str) -> Rendered:
    """The server-sent events of this turn."""
    if turn.raw is not None:
        return Rendered((), turn.raw)
    deltas: list[bytes] = []
    for index, (block, block_deltas) in enumerate(_blocks(turn)):
        deltas += _block_events(index, block, block_deltas)
    usage = turn.counted(len(deltas))
    return Rendered(
        tuple(deltas),
        b"".join(_closing(turn, usage)),
        opening=_event("message_start", message=_message(model, usage)),
    )


def _message(model: str, usage: FakeUsage | Json | None) -> Json:
    return {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # The real service always counts; a turn without usage stands for proxies that do not.
        **({} if usage is None else {"usage": _start_usage(usage)}),
    }


def _start_usage(usage: FakeUsage | Json) -> Json:
    if isinstance(usage, Mapping):
        return usage
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": 1,
    }


def _blocks(turn: Turn) -> Iterator[tuple[Json, list[Json]]]:
    thinking: list[Json] = [
        {"type": "thinking_delta", "thinking": piece} for piece in pieces(turn.thinking)
    ]
    if turn.thinking_signature:
        thinking.append({"type": "signature_delta", "signature": turn.thinking_signature})
    if thinking:
        yield {"type": "thinking", "thinking": "", "signature": ""}, thinking
    if turn.redacted_thinking:
        yield {"type": "redacted_thinking", "data": turn.redacted_thinking}, []
    text: list[Json] = [{"type": "text_delta", "text": piece} for piece in pieces(turn.text)]
    if text:
        yield {"type": "text", "text": ""}, text
    for number, call in enumerate(turn.tool_calls):
        yield _call_block(number, call), list(_argument_deltas(call))


def _argument_deltas(call: FakeToolCall) -> Iterator[Json]:
    for piece in argument_pieces(call):
        yield {"type": "input_json_delta", "partial_json": piece}


def _call_block(number: int, call: FakeToolCall) -> Json:
    call_id = call.id or f"toolu_{number + 1}"
    return {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}


def _block_events(index: int, block: Json, deltas: list[Json]) -> Iterator[bytes]:
    """One piece per delta: the block's start goes with its first, its stop with its last."""
    start = _event("content_block_start", index=index, content_block=block)
    stop = _event("content_block_stop", index=index)
    events = [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
    if not events:
        yield start + stop
        return
    events[0] = start + events[0]
    events[-1] += stop
    yield from events


def _closing(turn: Turn, usage: FakeUsage | Json | None) -> Iterator[bytes]:
    if turn.stream_error is not None:
        status = turn.stream_error.get("code")
        message = str(turn.stream_error.get("message", ""))
        yield sse(error_body(status if isinstance(status, int) else 500, message), "error")
    if turn.stream_error is not None or turn.truncate or turn.disconnect:
        return
    reason = _STOP[turn.stop_reason] if turn.finish_reason == "auto" else turn.finish_reason
    if reason is not None:
        delta: dict[str, Any] = {"stop_reason": reason, "stop_sequence": None}
        if reason == "refusal":
            delta["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
        counts = {} if usage is None else {"usage": _last_usage(usage)}
        yield _event("message_delta", delta=delta, **counts)
        yield _event("message_stop")


def _last_usage(usage: FakeUsage | Json) -> Json:
    if isinstance(usage, Mapping):
        return usage
    return {**_start_usage(usage), "output_tokens": usage.output}


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def error_body(status: int, message: str) -> Json:
    """The error document, of a refused request and inside a stream alike."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_fake",
    }


WIRE = Wire(
    api="anthropic_messages",
    routes=("/v1/messages",),
    base_path="",
    render=render,
    error_body=error_body,
    last_text=last_message_text,
    key_of=lambda headers: headers.get("x-api-key") or bearer_of(headers),
    ping=PING,
)
