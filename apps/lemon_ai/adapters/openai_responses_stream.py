"""The answer of `POST {base}/responses`: events of output items into a partial message.

This runs once per token: plain dicts and one pass, no models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lemon_ai.adapters.streaming import document_of, failed, filtered, finished, unfinished
from lemon_ai.adapters.tool_calls import tool_name, unique_id
from lemon_ai.error_parsing import parse_stream_error
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.text import dump_json
from lemon_ai.types import ErrorInfo, Usage
from lemon_ai.usage import priced

# The HTTP status that an error's code stands for inside a stream.
ERROR_STATUS: Mapping[str, int] = {
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "server_is_overloaded": 503,
    "slow_down": 503,
    "vector_store_timeout": 504,
}
_TERMINAL = frozenset(
    {"response.completed", "response.done", "response.incomplete", "response.failed"}
)


class ResponsesStreamParser:
    """Reads one answer. `service_tier` sets the price where the answer names no tier itself."""

    __slots__ = ("_calls", "_error", "_ids", "_partial", "_prose_seen", "_response", "_tier")

    def __init__(self, partial: PartialMessage, service_tier: str | None) -> None:
        self._partial = partial
        self._tier = service_tier
        self._calls: dict[object, int] = {}  # output index on the wire -> index in the message
        self._ids: set[str] = set()
        self._prose_seen = False  # whether the open item has sent any text
        self._response: Mapping[str, Any] | None = None
        self._error: ErrorInfo | None = None

    def feed(self, event: SSEEvent) -> bool:
        """Take one event; True after a terminal one or an error."""
        if event.data == b"[DONE]":
            return False
        document = document_of(event, "openai_responses")
        if document is None:
            return False
        kind = document.get("type") or event.name
        if kind in _TERMINAL:
            self._response = document.get("response") or {}
            self._take_usage(self._response)
            return True
        if kind == "error" or (not kind and document.get("error")):
            self._error = _stream_error(document)
            return True
        self._take(str(kind), document)
        return False

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """The terminal event; a tool call ends only when the answer ended properly."""
        if self._error is not None:
            return failed(self._partial, self._error)
        if self._response is None:
            return failed(self._partial, unfinished(self._partial, broken))
        status = self._response.get("status")
        if status in ("failed", "cancelled"):
            return failed(self._partial, _failure(self._response, str(status)))
        if status != "incomplete":
            return finished(self._partial, "stop")
        if (self._response.get("incomplete_details") or {}).get("reason") == "content_filter":
            return failed(self._partial, filtered())
        return finished(self._partial, "length")

    def _take(self, kind: str, document: Mapping[str, Any]) -> None:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._prose_seen = True
                self._partial.add_text(document.get("delta") or "")
            case "response.function_call_arguments.delta":
                if (call := self._call_of(document)) is not None:
                    self._partial.add_arguments(call, document.get("delta") or "")
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._prose_seen = True
                self._partial.add_thinking(document.get("delta") or "")
            case "response.reasoning_summary_part.added":
                if self._prose_seen:
                    self._partial.add_thinking("\n\n")
            case "response.output_item.added":
                self._start(document.get("output_index"), document.get("item") or {})
            case "response.output_item.done":
                self._end(document.get("output_index"), document.get("item") or {})
            case "response.function_call_arguments.done":
                if (call := self._call_of(document)) is not None:
                    self._complete(call, document.get("arguments"))

    def _call_of(self, document: Mapping[str, Any]) -> int | None:
        return self._calls.get(document.get("output_index"))

    def _start(self, index: object, item: Mapping[str, Any]) -> None:
        self._partial.close_prose()
        self._prose_seen = False
        if item.get("type") == "function_call":
            name = tool_name(item)
            self._calls[index] = self._partial.start_tool_call(self._call_id(item), name)
            self._partial.add_arguments(self._calls[index], item.get("arguments") or "")

    def _call_id(self, item: Mapping[str, Any]) -> str:
        """`call|item`; the call half alone where the item has no id."""
        call_id = str(item.get("call_id") or f"call_stream_{len(self._calls)}")
        call_id = unique_id(call_id, self._ids)
        return f"{call_id}|{item['id']}" if item.get("id") else call_id

    def _end(self, index: object, item: Mapping[str, Any]) -> None:
        match item.get("type"):
            case "reasoning":
                self._end_reasoning(item)
            case "message":
                self._end_message(item)
            case "function_call":
                if index not in self._calls:
                    self._start(index, {**item, "arguments": ""})
                self._complete(self._calls[index], item.get("arguments"))

    def _end_reasoning(self, item: Mapping[str, Any]) -> None:
        """The whole item is the signature: the encrypted content that began it may be half."""
        if not self._prose_seen:
            parts = item.get("summary") or item.get("content") or ()
            self._partial.add_thinking("\n\n".join(_texts(parts)))
        if item.get("encrypted_content") or item.get("content"):
            self._partial.sign_thinking(dump_json(item).decode())
        self._partial.close_prose()

    def _end_message(self, item: Mapping[str, Any]) -> None:
        if not self._prose_seen:
            self._partial.add_text("".join(_texts(item.get("content") or ())))
        signature = {name: item[name] for name in ("id", "phase") if item.get(name)}
        if signature:
            self._partial.sign_text(dump_json(signature).decode())
        self._partial.close_prose()

    def _complete(self, call: int, whole: object) -> None:
        """Add what the deltas left out; servers may send the arguments at the end only."""
        text = self._partial.arguments_text(call)
        if isinstance(whole, str) and len(whole) > len(text) and whole.startswith(text):
            self._partial.add_arguments(call, whole[len(text) :])

    def _take_usage(self, response: Mapping[str, Any]) -> None:
        usage = response.get("usage")
        if isinstance(usage, dict) and (read := read_usage(usage)) is not None:
            tier = response.get("service_tier") or self._tier
            self._partial.usage = priced(self._partial.model, read, tier)


def _texts(parts: object) -> list[str]:
    found = parts if isinstance(parts, list) else []
    texts = (p.get("text") or p.get("refusal") for p in found if isinstance(p, dict))
    return [str(text) for text in texts if text]


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Disjoint token counts, or None when the server counted none; output includes reasoning."""
    prompt, output = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(prompt, int) and not isinstance(output, int):
        return None
    details = usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    written = details.get("cache_write_tokens") or 0
    return Usage(
        input=max((prompt or 0) - cached - written, 0),
        output=output or 0,
        cache_read=cached,
        cache_write=written,
    )


def _stream_error(document: Mapping[str, Any]) -> ErrorInfo:
    """An `error` event has its fields flat or inside `error`."""
    error = document.get("error")
    fields = error if isinstance(error, dict) else document
    code = fields.get("code") or fields.get("type")
    shown = {name: fields.get(name) for name in ("code", "message", "param")}
    if code == "error":  # the event's own type, not a kind of error
        code = None
    return parse_stream_error(
        {"error": {**shown, "code": code}}, status=ERROR_STATUS.get(str(code))
    )


def _failure(response: Mapping[str, Any], status: str) -> ErrorInfo:
    error = response.get("error") or {}
    code = error.get("code")
    message = error.get("message") or f"the provider ended the answer as {status}"
    document = {"error": {"code": code, "message": message}}
    return parse_stream_error(document, status=ERROR_STATUS.get(str(code)))
