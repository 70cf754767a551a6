"""Turns in the wire format of Bedrock's `converse-stream`: event-stream frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import pack
from typing import Any
from zlib import crc32

from lemon_ai.testing.script import FakeUsage, Turn
from lemon_ai.testing.wires.base import (
    Json,
    Rendered,
    Wire,
    argument_pieces,
    bearer_of,
    pieces,
)
from lemon_ai.text import dump_json

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_use": "tool_use",
    "filtered": "content_filtered",
}
_EXCEPTIONS = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    413: "ValidationException",
    424: "ModelStreamErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
_STRING = 7  # the type of every header used here


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One frame with its two checksums."""
    fields = b"".join(_header(name, value) for name, value in headers.items())
    # The two lengths and the two checksums are part of the whole.
    prelude = pack(">II", 16 + len(fields) + len(payload), len(fields))
    body = prelude + pack(">I", crc32(prelude)) + fields + payload
    return body + pack(">I", crc32(body))


def _header(name: str, value: str) -> bytes:
    raw = value.encode()
    return pack(">B", len(name)) + name.encode() + pack(">BH", _STRING, len(raw)) + raw


def event(kind: str, document: Json) -> bytes:
    """A frame that holds an event."""
    headers = {
        ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    # The service pads its events, so that their sizes tell nothing.
    return frame(headers, dump_json({**document, "p": "abcdefgh"}))


def exception(kind: str, message: str) -> bytes:
    """A frame that ends the stream as an error of the service."""
    headers = {
        ":exception-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return frame(headers, dump_json({"message": message}))


def error(code: str, message: str) -> bytes:
    """A frame that ends the stream as an error that is no exception of the service."""
    headers = {":message-type": "error", ":error-code": code, ":error-message": message}
    return frame(headers, b"")


def render(turn: Turn, model: str) -> Rendered:
    """The frames of this turn."""
    del model  # the service does not repeat it
    if turn.raw is not None:
        return Rendered((), turn.raw)
    deltas: list[bytes] = []
    for index, (start, block_deltas) in enumerate(_blocks(turn)):
        deltas += _block_events(index, start, block_deltas)
    return Rendered(
        tuple(deltas),
        b"".join(_closing(turn, turn.counted(len(deltas)))),
        opening=event("messageStart", {"role": "assistant"}),
    )


def _blocks(turn: Turn) -> Iterator[tuple[Json | None, list[Json]]]:
    """The blocks' starts, which only calls have, and their deltas."""
    thinking = [_reasoning("text", piece) for piece in pieces(turn.thinking)]
    if turn.thinking_signature:
        thinking.append(_reasoning("signature", turn.thinking_signature))
    if thinking:
        yield None, thinking
    if turn.redacted_thinking:
        yield None, [_reasoning("redactedContent", turn.redacted_thinking)]
    if texts := [{"text": piece} for piece in pieces(turn.text)]:
        yield None, [*texts]
    for number, call in enumerate(turn.tool_calls):
        use = {"toolUseId": call.id or f"tooluse_{number + 1}", "name": call.name}
        yield {"toolUse": use}, [{"toolUse": {"input": p}} for p in argument_pieces(call)]


def _reasoning(field: str, value: str) -> Json:
    return {"reasoningContent": {field: value}}


def _block_events(index: int, start: Json | None, deltas: list[Json]) -> Iterator[bytes]:
    """One piece per delta: the block's start goes with its first, its stop with its last."""
    place: dict[str, Any] = {"contentBlockIndex": index}
    events = [event("contentBlockDelta", {**place, "delta": delta}) for delta in deltas] or [b""]
    if start is not None:
        events[0] = event("contentBlockStart", {**place, "start": start}) + events[0]
    events[-1] += event("contentBlockStop", place)
    yield from events


def _closing(turn: Turn, usage: FakeUsage | Json | None) -> Iterator[bytes]:
    if turn.stream_error is not None:
        status = turn.stream_error.get("code")
        name = _EXCEPTIONS.get(status if isinstance(status, int) else 500, _EXCEPTIONS[500])
        # Inside a stream the names begin small.
        yield exception(name[0].lower() + name[1:], str(turn.stream_error.get("message", "")))
    if turn.stream_error is not None or turn.truncate or turn.disconnect:
        return
    reason = _STOP[turn.stop_reason] if turn.finish_reason == "auto" else turn.finish_reason
    if reason is not None:
        yield event("messageStop", {"stopReason": reason})
        if usage is not None:
            counts = {"usage": _usage(usage), "metrics": {"latencyMs": 1}}
            yield event("metadata", counts)


def _usage(usage: FakeUsage | Json) -> Json:
    if isinstance(usage, Mapping):
        return usage
    total = usage.input + usage.output + usage.cache_read + usage.cache_write
    return {
        "inputTokens": usage.input,
        "outputTokens": usage.output,
        "totalTokens": total,
        "cacheReadInputTokens": usage.cache_read,
        "cacheWriteInputTokens": usage.cache_write,
    }


def error_body(status: int, message: str) -> Json:
    """The document of a refused request; its kind stands in a header."""
    del status
    return {"message": message}


def error_headers(status: int, message: str) -> Mapping[str, str]:
    """The headers of a refused request."""
    del message
    kind = _EXCEPTIONS.get(status, "InternalServerException" if status >= 500 else "Exception")
    return {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/", "x-amzn-requestid": "r1"}


def last_text(body: Json) -> str:
    """The text of the last message, results of tools included."""
    messages = body.get("messages") or [{}]
    return "\n".join(_texts(messages[-1].get("content") or ()))


def _texts(content: Iterable[Json]) -> Iterator[str]:
    for block in content:
        if isinstance(block.get("text"), str):
            yield block["text"]
        yield from _texts(block.get("toolResult", {}).get("content", ()))


WIRE = Wire(
    api="bedrock_converse_stream",
    routes=("/model/{model}/converse-stream",),
    base_path="",
    render=render,
    error_body=error_body,
    error_headers=error_headers,
    last_text=last_text,
    key_of=bearer_of,
    content_type=CONTENT_TYPE,
    ping=b"",
    is_sse=False,
)
