"""The answer of `POST {base}/chat/completions`: chunks of deltas into a partial message.

This runs once per token: plain dicts and one pass, no models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lemon_ai.adapters.openai_chat_request import REASONING_FIELDS
from lemon_ai.adapters.streaming import document_of, failed, filtered, finished, unfinished
from lemon_ai.adapters.tool_calls import ToolCallAssembler
from lemon_ai.error_parsing import parse_stream_error
from lemon_ai.errors import protocol_error
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.types import ErrorInfo, Model, StopReason, Usage
from lemon_ai.usage import priced

_STOP: Mapping[str, StopReason] = {
    "stop": "stop",
    "end": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_FILTERED = frozenset({"content_filter", "sensitive"})
_FAILED = frozenset({"error", "network_error", "insufficient_system_resource"})


class ChatStreamParser:
    """Reads one answer. `service_tier` sets the price."""

    __slots__ = ("_calls", "_done", "_error", "_finish_reason", "_model", "_partial", "_tier")

    def __init__(self, partial: PartialMessage, service_tier: str | None) -> None:
        self._partial = partial
        self._model: Model = partial.model
        self._tier = service_tier
        self._calls = ToolCallAssembler(partial)
        self._finish_reason: str | None = None
        self._error: ErrorInfo | None = None
        self._done = False

    def feed(self, event: SSEEvent) -> bool:
        """Take one chunk; True after `[DONE]` or an error."""
        if event.data == b"[DONE]":
            self._done = True
            return True
        chunk = document_of(event, "openai_chat")
        if chunk is None:
            return False
        if chunk.get("error"):
            self._error = parse_stream_error(chunk)
            return True
        if usage := chunk.get("usage"):
            self._take_usage(usage)
        choices = chunk.get("choices")
        if choices:
            self._take_choice(choices[0])
        return False

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """The terminal event; a tool call ends only when the answer ended properly."""
        partial = self._partial
        error = self._error or self._final_error(broken)
        if error is not None:
            return failed(partial, error)
        return finished(partial, _STOP.get((self._finish_reason or "stop").lower(), "stop"))

    def _final_error(self, broken: ErrorInfo | None) -> ErrorInfo | None:
        reason = (self._finish_reason or "").lower()
        if reason in _FILTERED:
            return filtered()
        if reason in _FAILED:
            return protocol_error(f"the provider broke off the answer ({reason})", reason)
        if reason:
            return None  # complete, however the connection ended after that
        if self._done and self._partial.has_content and broken is None:
            return None
        return unfinished(self._partial, broken)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        if usage := choice.get("usage"):
            self._take_usage(usage)
        if finish_reason := choice.get("finish_reason"):
            self._finish_reason = str(finish_reason)
        delta = choice.get("delta")
        if not delta:
            return
        for name in REASONING_FIELDS:
            if thinking := delta.get(name):
                if isinstance(thinking, str):
                    self._partial.add_thinking(thinking, name)
                break
        if content := delta.get("content"):
            if isinstance(content, str):
                self._partial.add_text(content)
            else:
                self._take_parts(content)
        elif refusal := delta.get("refusal"):
            self._partial.add_text(str(refusal))
        if calls := delta.get("tool_calls"):
            self._calls.take(calls)
        if details := delta.get("reasoning_details"):
            self._calls.take_details(details)

    def _take_parts(self, parts: object) -> None:
        """Content as a list of typed parts, thinking parts among them."""
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            if part.get("type") == "thinking":
                inner = part.get("thinking")
                for piece in inner if isinstance(inner, list) else ():
                    self._partial.add_thinking(str(piece.get("text") or ""))
            elif isinstance(part.get("text"), str):
                self._partial.add_text(part["text"])

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, dict) and (read := read_usage(usage)) is not None:
            self._partial.usage = priced(self._model, read, self._tier)


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Disjoint token counts, or None when the server counted nothing."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) and not isinstance(completion, int):
        return None
    prompt, completion = prompt or 0, completion or 0
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    written = details.get("cache_write_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    if reasoning and usage.get("total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # this server reports thinking beside the output
    return Usage(
        input=max(prompt - cached - written, 0),
        output=completion,
        cache_read=cached,
        cache_write=written,
    )
