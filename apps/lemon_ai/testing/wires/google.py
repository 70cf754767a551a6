"""Turns in the wire format of Gemini's `streamGenerateContent`, at AI Studio and on Vertex."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lemon_ai.testing.script import FakeToolCall, FakeUsage, Turn
from lemon_ai.testing.wires.base import (
    Json,
    Rendered,
    Wire,
    argument_text,
    bearer_of,
    pieces,
    sse,
)
from lemon_ai.text import parse_arguments

_STOP = {"stop": "STOP", "length": "MAX_TOKENS", "tool_use": "STOP", "filtered": "SAFETY"}
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def render(turn: Turn, model: str) -> Rendered:
    """The server-sent events of this turn: one response object each."""
    if turn.raw is not None:
        return Rendered((), turn.raw)
    parts = list(_parts(turn))
    usage = turn.counted(len(parts))
    deltas = [sse(_response(model, usage, [part])) for part in parts]
    return Rendered(tuple(deltas), b"".join(_closing(turn, model, usage)))


def _response(
    model: str, usage: FakeUsage | Json | None, parts: list[Json], reason: str | None = None
) -> Json:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    return {
        "candidates": [candidate],
        **({} if usage is None else {"usageMetadata": _usage(usage, is_last=reason is not None)}),
        "modelVersion": model,
        "responseId": "resp_fake",
    }


def _parts(turn: Turn) -> Iterator[Json]:
    """The signature goes where the service puts it: on the first call, else on the last text,
    else on the last thought."""
    signed = {"thoughtSignature": turn.thinking_signature} if turn.thinking_signature else {}
    thoughts: list[Json] = [{"text": text, "thought": True} for text in pieces(turn.thinking)]
    texts: list[Json] = [{"text": text} for text in pieces(turn.text)]
    calls: list[Json] = [{"functionCall": _call(call)} for call in turn.tool_calls]
    if calls:
        calls[0] = {**calls[0], **signed}
    elif texts:
        texts[-1] = {**texts[-1], **signed}
    elif thoughts:
        thoughts[-1] = {**thoughts[-1], **signed}
    yield from (*thoughts, *texts, *calls)


def _call(call: FakeToolCall) -> Json:
    """Arguments come as an object; what is none goes out as text, as some gateways do."""
    raw = argument_text(call)
    arguments, problem = parse_arguments(raw)
    return {
        **({} if call.id is None else {"id": call.id}),
        "name": call.name,
        "args": arguments if problem is None else raw,
    }


def _usage(usage: FakeUsage | Json, *, is_last: bool) -> Json:
    """Counts come with every event and grow; the prompt counts what was cached."""
    if isinstance(usage, Mapping):
        return usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    output = usage.output - usage.reasoning if is_last else 1
    counts: dict[str, Any] = {"promptTokenCount": prompt, "candidatesTokenCount": output}
    if usage.cache_read:
        counts["cachedContentTokenCount"] = usage.cache_read
    if usage.reasoning:
        counts["thoughtsTokenCount"] = usage.reasoning
    counts["totalTokenCount"] = prompt + output + usage.reasoning
    return counts


def _closing(turn: Turn, model: str, usage: FakeUsage | Json | None) -> Iterator[bytes]:
    if turn.stream_error is not None:
        status = turn.stream_error.get("code")
        message = str(turn.stream_error.get("message", ""))
        yield sse(error_body(status if isinstance(status, int) else 500, message))
    if turn.stream_error is not None or turn.truncate or turn.disconnect:
        return
    reason = _STOP[turn.stop_reason] if turn.finish_reason == "auto" else turn.finish_reason
    if reason is not None:
        yield sse(_response(model, usage, [{"text": ""}], reason))


def error_body(status: int, message: str) -> Json:
    """The error document, of a refused request and inside a stream alike."""
    word = _STATUS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": message, "status": word}}


def last_text(body: Json) -> str:
    """The text of the last content, results of functions included."""
    contents = body.get("contents") or [{}]
    parts = contents[-1].get("parts") or []
    return "\n".join(text for part in parts for text in _texts(part))


def _texts(part: Json) -> Iterator[str]:
    if isinstance(part.get("text"), str):
        yield part["text"]
    response = part.get("functionResponse")
    if isinstance(response, Mapping):
        yield from (str(value) for value in response.get("response", {}).values())


_METHOD = "{model:[^:/]+}:streamGenerateContent"
WIRE = Wire(
    api="google_generative_ai",
    # The vendor's SDK asks for the older version.
    routes=(f"/v1beta/models/{_METHOD}", f"/v1/models/{_METHOD}"),
    base_path="/v1beta",
    render=render,
    error_body=error_body,
    last_text=last_text,
    key_of=lambda headers: headers.get("x-goog-api-key"),
)
_PROJECT = "/projects/fake-project/locations/us-central1"
VERTEX_WIRE = Wire(
    api="google_vertex",
    # The vendor's SDK asks for the newer version.
    routes=tuple(
        f"/{version}{_PROJECT}/publishers/google/models/{_METHOD}" for version in ("v1", "v1beta1")
    ),
    base_path=f"/v1{_PROJECT}",
    render=render,
    error_body=error_body,
    last_text=last_text,
    key_of=bearer_of,
)
