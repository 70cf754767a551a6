"""The answer of `converse-stream`: frames into events, events into a partial message.

A frame has two checksums, and headers that say what it holds: an event, an exception of the
service, or an error of the connection. Text and reasoning begin with their first delta; only tool
calls are announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lemon_ai.adapters.streaming import document_of, failed, filtered, finished, unfinished
from lemon_ai.adapters.tool_calls import tool_name, unique_id
from lemon_ai.error_parsing import parse_http_error, parse_stream_error
from lemon_ai.errors import RETRYABLE, protocol_error
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import BrokenFraming, SSEEvent
from lemon_ai.text import dump_json
from lemon_ai.types import ErrorCategory, ErrorInfo, StopReason, Usage, now_ms
from lemon_ai.usage import count_of, priced

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
# What stands before the kind of an exception in an event's name; no event is called so.
EXCEPTION: Final = "exception:"

_STOP: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_use",
}
_FILTERED = frozenset({"guardrail_intervened", "content_filtered"})
_BROKEN = frozenset({"malformed_model_output", "malformed_tool_use"})
# The status that each exception stands for, by its name in lower case.
_STATUS: Mapping[str, int] = {
    "accessdeniedexception": 403,
    "internalserverexception": 500,
    "modelerrorexception": 424,
    "modelnotreadyexception": 429,
    "modelstreamerrorexception": 424,
    "modeltimeoutexception": 408,
    "resourcenotfoundexception": 404,
    "serviceunavailableexception": 503,
    "throttlingexception": 429,
    "validationexception": 400,
}
# What their statuses do not say: the model's trouble, which passes.
_TRANSIENT = frozenset(
    {
        "modelerrorexception",
        "modelnotreadyexception",
        "modelstreamerrorexception",
        "modeltimeoutexception",
    }
)


class EventStreamDecoder:
    """Frames out of bytes as they come; see `Decoder`. botocore checks both checksums."""

    def __init__(self) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._buffer: Any = EventStreamBuffer()
        self._broken: BrokenFraming | None = None

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events completed by this chunk; those before a broken frame are still given."""
        from botocore.eventstream import ParserError

        self.finish()
        events: list[SSEEvent] = []
        self._buffer.add_data(chunk)
        try:
            for message in self._buffer:
                if (event := _event(message.headers, message.payload)) is not None:
                    events.append(event)
        except ParserError as exc:
            self._broken = BrokenFraming(f"an event frame is broken: {exc}")
        if not events:
            self.finish()
        return events

    def finish(self) -> list[SSEEvent]:
        """Nothing: half a frame is no event."""
        if self._broken is not None:
            raise self._broken
        return []


def _event(headers: Mapping[str, Any], payload: bytes) -> SSEEvent | None:
    match headers.get(":message-type"):
        case "event":
            return SSEEvent(payload, str(headers.get(":event-type") or ""))
        case "exception":
            return SSEEvent(payload, f"{EXCEPTION}{headers.get(':exception-type')}")
        case "error":
            document = {"message": str(headers.get(":error-message") or "")}
            return SSEEvent(dump_json(document), f"{EXCEPTION}{headers.get(':error-code')}")
        case _:
            return None


def read_bedrock_error(status: int, body: bytes, headers: Mapping[str, str]) -> ErrorInfo:
    """The ErrorInfo of an answer that is not a 200; its kind is in a header."""
    error = parse_http_error(status, body, headers, now_ms=now_ms())
    kind = headers.get("x-amzn-errortype", "").split(":", 1)[0]
    request_id = headers.get("x-amzn-requestid") or error.request_id
    named = error.model_copy(update={"code": kind or error.code, "request_id": request_id})
    return _by_kind(named, kind)


def _by_kind(error: ErrorInfo, kind: str) -> ErrorInfo:
    if kind.lower() not in _TRANSIENT:
        return error
    category: ErrorCategory = "transient"
    return error.model_copy(update={"category": category, "retryable": category in RETRYABLE})


class BedrockStreamParser:
    """Reads one answer."""

    __slots__ = ("_calls", "_error", "_ids", "_partial", "_stop")

    def __init__(self, partial: PartialMessage) -> None:
        self._partial = partial
        self._calls: dict[object, int] = {}  # index on the wire -> index in the message
        self._ids: set[str] = set()
        self._stop: str | None = None
        self._error: ErrorInfo | None = None

    def feed(self, event: SSEEvent) -> bool:
        """Take one event; True after the usage, which comes last, or an exception."""
        document = document_of(event, "bedrock") or {} if event.data else {}
        match event.name:
            case "contentBlockDelta":
                self._take_delta(document.get("contentBlockIndex"), document.get("delta"))
            case "contentBlockStart":
                self._start(document.get("contentBlockIndex"), document.get("start"))
            case "contentBlockStop":
                if document.get("contentBlockIndex") not in self._calls:
                    self._partial.close_prose()
            case "messageStop":
                self._stop = str(document.get("stopReason") or "end_turn")
            case "metadata":
                self._take_usage(document.get("usage"))
                return self._stop is not None
            case name if name.startswith(EXCEPTION):
                self._error = _exception(name.removeprefix(EXCEPTION), document)
                return True
        return False

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """The terminal event; a tool call ends only when the answer ended properly."""
        if self._error is not None:
            return failed(self._partial, self._error)
        if self._stop is None:
            return failed(self._partial, unfinished(self._partial, broken))
        if self._stop in _FILTERED:
            return failed(self._partial, filtered())
        if self._stop in _BROKEN:
            text = f"the model broke off its answer ({self._stop})"
            return failed(self._partial, protocol_error(text, self._stop))
        return finished(self._partial, _STOP.get(self._stop, "stop"))

    def _start(self, index: object, start: object) -> None:
        use = start.get("toolUse") if isinstance(start, dict) else None
        if not isinstance(use, dict):
            return
        number = len(self._calls)
        call_id = unique_id(str(use.get("toolUseId") or f"call_stream_{number}"), self._ids)
        name = tool_name(use)
        self._calls[index] = self._partial.start_tool_call(call_id, name)

    def _take_delta(self, index: object, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        if isinstance(text := delta.get("text"), str):
            self._partial.add_text(text)
        elif isinstance(use := delta.get("toolUse"), dict):
            if index in self._calls:
                self._partial.add_arguments(self._calls[index], str(use.get("input") or ""))
        elif isinstance(reasoning := delta.get("reasoningContent"), dict):
            self._take_reasoning(reasoning)

    def _take_reasoning(self, delta: Mapping[str, Any]) -> None:
        if isinstance(text := delta.get("text"), str):
            self._partial.add_thinking(text)
        if signature := delta.get("signature"):
            self._partial.sign_thinking(str(signature), append=True)
        if redacted := delta.get("redactedContent"):
            self._partial.add_redacted(str(redacted))

    def _take_usage(self, usage: object) -> None:
        """The buckets come disjoint."""
        if not isinstance(usage, dict):
            return
        read = Usage(
            input=count_of(usage, "inputTokens"),
            output=count_of(usage, "outputTokens"),
            cache_read=count_of(usage, "cacheReadInputTokens"),
            cache_write=count_of(usage, "cacheWriteInputTokens"),
        )
        self._partial.usage = priced(self._partial.model, read)


def _exception(kind: str, document: Mapping[str, Any]) -> ErrorInfo:
    message = document.get("message") or document.get("originalMessage") or ""
    error = {"error": {"type": kind, "message": str(message)}}
    return _by_kind(parse_stream_error(error, status=_STATUS.get(kind.lower())), kind)
