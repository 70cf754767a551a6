"""The answer of `POST {base}/v1/messages`: events of content blocks into a partial message.

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
from lemon_ai.types import ErrorInfo, StopReason, Usage
from lemon_ai.usage import priced

_STOP: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_use",
}
_REFUSED = frozenset({"refusal", "sensitive"})
# The HTTP status that each error type stands for, also inside a stream.
ERROR_STATUS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_COUNTS = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class AnthropicStreamParser:
    """Reads one answer."""

    __slots__ = ("_calls", "_counts", "_error", "_ids", "_inputs", "_partial", "_stop", "_stopped")

    def __init__(self, partial: PartialMessage) -> None:
        self._partial = partial
        self._calls: dict[object, int] = {}  # index on the wire -> index in the message
        self._inputs: dict[object, Any] = {}  # arguments that came whole with the block's start
        self._ids: set[str] = set()
        self._counts: dict[str, int] = {}
        self._stop: str | None = None
        self._stopped: Mapping[str, Any] = {}
        self._error: ErrorInfo | None = None

    def feed(self, event: SSEEvent) -> bool:
        """Take one event; True after `message_stop` or an error."""
        document = document_of(event, "anthropic")
        if document is None:
            return False
        match document.get("type") or event.name:
            case "content_block_delta":
                self._take_delta(document.get("index"), document.get("delta") or {})
            case "content_block_start":
                self._start(document.get("index"), document.get("content_block") or {})
            case "content_block_stop":
                self._end(document.get("index"))
            case "message_start":
                self._take_usage((document.get("message") or {}).get("usage"))
            case "message_delta":
                self._take_end(document)
            case "message_stop":
                self._stop = self._stop or "end_turn"
                return True
            case "error":
                self._error = _stream_error(document)
                return True
        return False

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """The terminal event; a tool call ends only when the answer ended properly."""
        if self._error is not None:
            return failed(self._partial, self._error)
        if self._stop is None:
            return failed(self._partial, unfinished(self._partial, broken))
        if self._stop in _REFUSED:
            return failed(self._partial, self._refusal())
        return finished(self._partial, _STOP.get(self._stop, "stop"))

    def _take_delta(self, index: object, delta: Mapping[str, Any]) -> None:
        partial = self._partial
        match delta.get("type"):
            case "text_delta":
                partial.add_text(delta.get("text") or "")
            case "input_json_delta":
                if index in self._calls:
                    partial.add_arguments(self._calls[index], delta.get("partial_json") or "")
            case "thinking_delta":
                partial.add_thinking(delta.get("thinking") or "")
            case "signature_delta":
                if signature := delta.get("signature"):
                    partial.sign_thinking(signature, append=True)

    def _start(self, index: object, block: Mapping[str, Any]) -> None:
        partial = self._partial
        partial.close_prose()
        match block.get("type"):
            case "text":
                partial.add_text(block.get("text") or "")
            case "thinking":
                partial.add_thinking(block.get("thinking") or "")
                if signature := block.get("signature"):
                    partial.sign_thinking(signature)
            case "redacted_thinking":
                partial.add_redacted(str(block.get("data") or ""))
            case "tool_use":
                number = len(self._calls)
                call_id = unique_id(str(block.get("id") or f"call_stream_{number}"), self._ids)
                name = tool_name(block)
                self._calls[index] = partial.start_tool_call(call_id, name)
                self._inputs[index] = block.get("input")

    def _end(self, index: object) -> None:
        call = self._calls.get(index)
        if call is None:
            self._partial.close_prose()
        elif (whole := self._inputs.pop(index, None)) and not self._partial.arguments_text(call):
            self._partial.add_arguments(call, dump_json(whole).decode())

    def _take_end(self, document: Mapping[str, Any]) -> None:
        delta = document.get("delta") or {}
        if reason := delta.get("stop_reason"):
            self._stop = str(reason)
            self._stopped = delta.get("stop_details") or {}
        self._take_usage(document.get("usage"))

    def _take_usage(self, usage: object) -> None:
        """Counts are cumulative; what a later report leaves out stands as it was."""
        if not isinstance(usage, dict):
            return
        found = {name: usage[name] for name in _COUNTS if isinstance(usage.get(name), int)}
        if not found:
            return
        self._counts |= found
        read = Usage(
            input=self._counts.get("input_tokens", 0),
            output=self._counts.get("output_tokens", 0),
            cache_read=self._counts.get("cache_read_input_tokens", 0),
            cache_write=self._counts.get("cache_creation_input_tokens", 0),
        )
        self._partial.usage = priced(self._partial.model, read)

    def _refusal(self) -> ErrorInfo:
        details = [self._stopped.get("category"), self._stopped.get("explanation")]
        words = ": ".join(str(detail) for detail in details if detail)
        return filtered(f"the model refused to answer{f' ({words})' if words else ''}")


def _stream_error(document: Mapping[str, Any]) -> ErrorInfo:
    error = document.get("error")
    kind = error.get("type") if isinstance(error, dict) else None
    return parse_stream_error(document, status=ERROR_STATUS.get(str(kind)))
