"""The answer of `streamGenerateContent?alt=sse`: one response object per event, into a partial
message.

This runs once per event: plain dicts and one pass, no models. The stream has no end mark: the
last event has a `finishReason`, and the body ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lemon_ai.adapters.google_request import made_up_id
from lemon_ai.adapters.streaming import document_of, failed, filtered, finished, unfinished
from lemon_ai.adapters.tool_calls import tool_name, unique_id
from lemon_ai.error_parsing import parse_http_error, parse_stream_error
from lemon_ai.errors import protocol_error
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEEvent
from lemon_ai.text import dump_json
from lemon_ai.types import ErrorInfo, StopReason, Usage, now_ms
from lemon_ai.usage import count_of, priced

_STOP: Mapping[str, StopReason] = {"STOP": "stop", "MAX_TOKENS": "length"}
# What the model did wrong, which another try may do better; any other reason is a refusal.
_BROKEN = frozenset(
    {
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "OTHER",
        "TOO_MANY_TOOL_CALLS",
        "UNEXPECTED_TOOL_CALL",
    }
)
_REASON_OF_A_BAD_KEY = "API_KEY_INVALID"


def read_google_error(status: int, body: bytes, headers: Mapping[str, str]) -> ErrorInfo:
    """The ErrorInfo of an answer that is not a 200. A wrong key comes as a 400."""
    error = parse_http_error(status, body, headers, now_ms=now_ms())
    if status == 400 and _REASON_OF_A_BAD_KEY.encode() in body:
        return error.model_copy(update={"category": "auth", "code": _REASON_OF_A_BAD_KEY})
    return error


class GoogleStreamParser:
    """Reads one answer."""

    __slots__ = ("_blocked", "_calls", "_error", "_ids", "_partial", "_signed", "_stop", "_thinks")

    def __init__(self, partial: PartialMessage) -> None:
        self._partial = partial
        self._ids: set[str] = set()
        self._calls = 0
        self._thinks: bool | None = None  # whether the open block is thinking, None for no block
        self._signed = False  # whether the open block has its signature
        self._stop: str | None = None
        self._blocked: Mapping[str, Any] = {}
        self._error: ErrorInfo | None = None

    def feed(self, event: SSEEvent) -> bool:
        """Take one event; True only after an error, as usage may come with any later one."""
        document = document_of(event, "google")
        if document is None:
            return False
        if isinstance(document.get("error"), dict):
            self._error = parse_stream_error(document)
            return True
        self._take_usage(document.get("usageMetadata"))
        feedback = document.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason"):
            self._blocked = feedback
        candidates = document.get("candidates")
        if isinstance(candidates, list) and candidates and isinstance(candidates[0], dict):
            self._take_candidate(candidates[0])
        return False

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """The terminal event; a tool call ends only when the answer ended properly."""
        if self._error is not None:
            return failed(self._partial, self._error)
        if self._blocked:
            return failed(self._partial, self._prompt_refused())
        if self._stop is None:
            return failed(self._partial, unfinished(self._partial, broken))
        reason = _STOP.get(self._stop)
        if reason is None:
            return failed(self._partial, _refused(self._stop))
        return finished(self._partial, reason)

    def _take_candidate(self, candidate: Mapping[str, Any]) -> None:
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                self._take_part(part)
        if reason := candidate.get("finishReason"):
            self._stop = str(reason)

    def _take_part(self, part: Mapping[str, Any]) -> None:
        signature = part.get("thoughtSignature")
        if isinstance(call := part.get("functionCall"), dict):
            self._take_call(call, signature)
        elif isinstance(text := part.get("text"), str):
            thinks = part.get("thought") is True
            if thinks != self._thinks and (text or (thinks and signature)):
                self._thinks, self._signed = thinks, False
            if thinks:
                self._partial.add_thinking(text)
            else:
                self._partial.add_text(text)
            if signature and thinks == self._thinks and not self._signed:
                self._sign(str(signature), thinks)

    def _sign(self, signature: str, thinks: bool) -> None:
        self._signed = True
        if thinks:
            self._partial.sign_thinking(signature)
        else:
            self._partial.sign_text(signature)

    def _take_call(self, call: Mapping[str, Any], signature: object) -> None:
        """Calls arrive whole."""
        partial = self._partial
        self._thinks = None
        self._calls += 1
        name = tool_name(call)
        own = str(call.get("id") or "") or made_up_id(name, partial.timestamp, self._calls)
        index = partial.start_tool_call(unique_id(own, self._ids), name)
        if signature:
            partial.set_tool_call(index, thought_signature=str(signature))
        arguments = call.get("args")
        # Gateways pass on as text what they could not parse.
        text = arguments if isinstance(arguments, str) else dump_json(arguments or {}).decode()
        partial.add_arguments(index, text)

    def _take_usage(self, usage: object) -> None:
        if not isinstance(usage, dict) or not usage:
            return
        cached = count_of(usage, "cachedContentTokenCount")
        read = Usage(
            input=max(count_of(usage, "promptTokenCount") - cached, 0),
            output=count_of(usage, "candidatesTokenCount") + count_of(usage, "thoughtsTokenCount"),
            cache_read=cached,
        )
        self._partial.usage = priced(self._partial.model, read)

    def _prompt_refused(self) -> ErrorInfo:
        details = (self._blocked.get("blockReason"), self._blocked.get("blockReasonMessage"))
        words = ": ".join(str(detail) for detail in details if detail)
        return filtered(f"the provider refused the prompt ({words})")


def _refused(reason: str) -> ErrorInfo:
    if reason in _BROKEN:
        return protocol_error(f"the model broke off its answer ({reason})", reason.lower())
    return filtered(f"the provider's content filter stopped the answer ({reason})")
