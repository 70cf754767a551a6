"""Turns in the wire format of OpenAI's Responses API, which Azure serves too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from lemon_ai.testing.script import FakeToolCall, FakeUsage, Turn
from lemon_ai.testing.wires.base import (
    Json,
    Rendered,
    Wire,
    argument_pieces,
    argument_text,
    bearer_of,
    joined,
    pieces,
    sse,
    text_of,
)
from lemon_ai.testing.wires.openai_chat import CREATED_S, openai_error

_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def render(turn: Turn, model: str) -> Rendered:
    """The server-sent events of this turn."""
    if turn.raw is not None:
        return Rendered((), turn.raw)
    return _Answer(turn, model).rendered()


class _Answer:
    """One answer under construction: its items, and the numbers of its events."""

    def __init__(self, turn: Turn, model: str) -> None:
        self._turn = turn
        self._model = model
        self._numbers = count()
        self._output: list[Json] = []

    def rendered(self) -> Rendered:
        response = self._response("in_progress", None)
        opening = self._event("response.created", response=response)
        opening += self._event("response.in_progress", response=response)
        deltas = [*self._reasoning(), *self._message()]
        for number, call in enumerate(self._turn.tool_calls):
            deltas += self._call(number, call)
        return Rendered(tuple(deltas), b"".join(self._closing(len(deltas))), opening)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def _item(
        self, added: Json, head: list[tuple[str, Json]], deltas: list[tuple[str, Json]], done: Json
    ) -> Iterator[bytes]:
        """The events of one output item, one piece per delta."""
        place = {"output_index": len(self._output), "item_id": added["id"]}
        opening = self._event(
            "response.output_item.added", output_index=len(self._output), item=added
        )
        opening += b"".join(self._event(kind, **place, **fields) for kind, fields in head)
        made: list[bytes] = []
        for kind, fields in deltas:
            made.append(opening + self._event(kind, **place, **fields))
            opening = b""
        closing = self._event(
            "response.output_item.done", output_index=len(self._output), item=done
        )
        self._output.append(done)
        if made:
            made[-1] += closing
        else:
            made.append(opening + closing)
        yield from made

    def _reasoning(self) -> Iterator[bytes]:
        turn = self._turn
        summary = pieces(turn.thinking)
        if not summary and not turn.thinking_signature:
            return
        item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
        done = {**item, "summary": [{"type": "summary_text", "text": joined(turn.thinking)}]}
        if not summary:
            done["summary"] = []
        if turn.thinking_signature:
            item = {**item, "encrypted_content": turn.thinking_signature[:4]}
            done["encrypted_content"] = turn.thinking_signature
        part = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
        head: list[tuple[str, Json]] = [("response.reasoning_summary_part.added", part)]
        kind = "response.reasoning_summary_text.delta"
        deltas: list[tuple[str, Json]] = [(kind, {"summary_index": 0, "delta": p}) for p in summary]
        yield from self._item(item, head if summary else [], deltas, done)

    def _message(self) -> Iterator[bytes]:
        text = pieces(self._turn.text)
        if not text:
            return
        head = {"id": "msg_1", "type": "message", "role": "assistant"}
        part: Json = {"type": "output_text", "text": "", "annotations": []}
        done = {
            **head,
            "status": "completed",
            "content": [{**part, "text": joined(self._turn.text)}],
        }
        yield from self._item(
            {**head, "status": "in_progress", "content": []},
            [("response.content_part.added", {"content_index": 0, "part": part})],
            [
                ("response.output_text.delta", {"content_index": 0, "delta": p, "logprobs": []})
                for p in text
            ],
            done,
        )

    def _call(self, number: int, call: FakeToolCall) -> Iterator[bytes]:
        item = {
            "id": f"fc_{number + 1}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id or f"call_{number + 1}",
            "name": call.name,
            "arguments": "",
        }
        deltas: list[tuple[str, Json]] = [
            ("response.function_call_arguments.delta", {"delta": p}) for p in argument_pieces(call)
        ]
        whole = argument_text(call)
        done = {**item, "status": "completed", "arguments": whole}
        ending = {"name": call.name, "arguments": whole}
        yield from self._item(
            item, [], [*deltas, ("response.function_call_arguments.done", ending)], done
        )

    def _closing(self, delta_count: int) -> Iterator[bytes]:
        turn = self._turn
        if turn.stream_error is not None:
            code = turn.stream_error.get("code")
            word = code if isinstance(code, str) else _CODES.get(code or 500, "server_error")
            message = str(turn.stream_error.get("message", ""))
            yield self._event("error", code=word, message=message, param=None)
        if turn.stream_error is not None or turn.truncate or turn.disconnect:
            return
        status = turn.finish_reason
        if status == "auto":
            status = "incomplete" if turn.stop_reason in ("length", "filtered") else "completed"
        if status is None:
            return
        kind = status if status in ("completed", "incomplete", "failed") else "completed"
        response = self._response(status, turn.counted(delta_count))
        yield self._event(f"response.{kind}", response=response)

    def _response(self, status: str, usage: FakeUsage | Json | None) -> Json:
        reason = {"length": "max_output_tokens", "filtered": "content_filter"}
        error = {"code": "server_error", "message": "The model failed."}
        return {
            "id": "resp_fake",
            "object": "response",
            "created_at": CREATED_S,
            "status": status,
            "error": error if status == "failed" else None,
            "incomplete_details": {"reason": reason.get(self._turn.stop, "max_output_tokens")}
            if status == "incomplete"
            else None,
            "model": self._model,
            "output": list(self._output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": _usage(usage),
        }


def _usage(usage: FakeUsage | Json | None) -> Json | None:
    if usage is None or isinstance(usage, Mapping):
        return usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": prompt + usage.output,
    }


def _last_text(body: Json) -> str:
    items = body.get("input") or [{}]
    if isinstance(items, str):
        return items
    last = items[-1]
    return text_of(last.get("output") if "output" in last else last.get("content"))


WIRE = Wire(
    api="openai_responses",
    routes=("/v1/responses",),
    base_path="/v1",
    render=render,
    error_body=openai_error,
    last_text=_last_text,
    key_of=bearer_of,
)
AZURE_WIRE = replace(
    WIRE,
    api="azure_openai_responses",
    routes=("/openai/v1/responses",),
    base_path="/openai/v1",
    key_of=lambda headers: headers.get("api-key"),
)
