"""One model call over HTTP with server-sent events: request, retries, reading, terminal event.

Shared by the adapters: each brings a WireCall (what to send) and a WireParser (what comes back).
A call is repeated only while no content block has begun.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.compat import Dialect
from lemon_ai.error_parsing import parse_http_error
from lemon_ai.errors import protocol_error, redact
from lemon_ai.events import Event, StreamCanceled, StreamDone, StreamError, TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.redaction import secrets_of
from lemon_ai.retry import RetryPolicy
from lemon_ai.sse import BrokenFraming, SSEDecoder, SSEEvent
from lemon_ai.text import load_json
from lemon_ai.transport import Response, TransportFailure, without_userinfo
from lemon_ai.types import ErrorInfo, StopReason, now_ms

log = logging.getLogger(__name__)

DEFAULT_MAX_RETRIES = 3
NOTHING_TO_SEND = ErrorInfo(
    category="client",
    code="nothing_to_send",
    message="no message is left to send to the model: all are empty or were left out",
)


class Decoder(Protocol):
    """Bytes as they come into events of the wire, pure and incremental."""

    def feed(self, chunk: bytes) -> Sequence[SSEEvent]:
        """The events completed by this chunk. Raises BrokenFraming."""
        ...

    def finish(self) -> Sequence[SSEEvent]:
        """What the end of the body completes."""
        ...


ErrorReader = Callable[[int, bytes, Mapping[str, str]], ErrorInfo]


def read_http_error(status: int, body: bytes, headers: Mapping[str, str]) -> ErrorInfo:
    """The ErrorInfo of an answer that is not a 200, for every API without habits of its own."""
    return parse_http_error(status, body, headers, now_ms=now_ms())


def error_reader(dialect: Dialect) -> ErrorReader:
    """`read_http_error` for a service that may answer 400 without a word."""

    def read(status: int, body: bytes, headers: Mapping[str, str]) -> ErrorInfo:
        error = read_http_error(status, body, headers)
        if status != 400 or body.strip():
            return error
        match dialect.empty_400:
            case "context_length":
                return error.model_copy(update={"category": "context_length"})
            case "retry":
                return error.model_copy(update={"category": "transient", "retryable": True})
            case "client":
                return error

    return read


@dataclass(frozen=True, slots=True)
class WireCall:
    """What goes on the wire, and how the answer is framed.

    `read_error` makes the ErrorInfo of an answer that is not a 200.
    """

    url: str
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    max_retries: int = DEFAULT_MAX_RETRIES
    content_type: str = "text/event-stream"
    new_decoder: Callable[[], Decoder] = SSEDecoder
    read_error: ErrorReader = read_http_error


class WireParser(Protocol):
    """Reads one answer's events into the partial message it was made for."""

    def feed(self, event: SSEEvent) -> bool:
        """Take one event; True when the answer needs no more of the stream."""
        ...

    def finish(self, broken: ErrorInfo | None) -> TerminalEvent:
        """Close the answer: after True from `feed`, at the end of the body (`broken` is None), or
        after the connection failed (`broken` says how)."""
        ...


async def stream_call(
    request: AdapterRequest, call: WireCall, new_parser: Callable[[], WireParser]
) -> AsyncGenerator[Sequence[Event], None]:
    """Batches of events up to the terminal one, with retries while nothing has been emitted."""
    longest_ms = request.options.max_retry_wait_ms
    policy = RetryPolicy(call.max_retries, request.transport.jitter, longest_ms)
    retry = 0
    while True:
        attempt = _Attempt(request, call, new_parser())
        delay_ms: int | None = None
        try:
            ended = False
            while not ended:
                batch = await attempt.next_batch()
                ended = isinstance(batch[-1], StreamDone | StreamError | StreamCanceled)
                delay_ms = _retry_delay(request, policy, retry, batch[-1])
                if delay_ms is None:
                    yield batch
        finally:
            await attempt.close()
        if delay_ms is None:
            return
        retry += 1
        request.partial.usage = None
        await request.transport.sleep(delay_ms / 1000)


def _retry_delay(
    request: AdapterRequest, policy: RetryPolicy, retry: int, last: Event
) -> int | None:
    """The wait before the next try, when this event is a failure that may be tried again."""
    if not isinstance(last, StreamError) or last.message.error is None:
        return None
    return None if request.partial.has_content else policy.delay_ms(retry, last.message.error)


class _Attempt:
    """One request and its answer."""

    def __init__(self, request: AdapterRequest, call: WireCall, parser: WireParser) -> None:
        self._request = request
        self._call = call
        self._parser = parser
        self._decoder = call.new_decoder()
        self._response: Response | None = None
        self._complete = False
        self._is_stream = False  # whether any event has come

    async def next_batch(self) -> Sequence[Event]:
        """What the next read brings, at least one event."""
        try:
            if self._response is None:
                self._response = await self._request.transport.post(
                    self._call.url, self._call.body, self._call.headers
                )
                if self._response.status != 200:
                    return self._fail(await self._http_error(self._response))
            while True:
                if batch := self._take(await self._response.read_chunk()):
                    return batch
        except TransportFailure as exc:
            if self._response is None:
                return self._fail(exc.error)
            return self._end(exc.error)
        except BrokenFraming as exc:
            return self._end(protocol_error(str(exc)))

    async def close(self) -> None:
        """Give the connection back, or close it when the answer is not complete."""
        if self._response is not None:
            if self._complete:
                await self._response.finish()
            self._response.close()

    def _take(self, chunk: bytes) -> Sequence[Event]:
        events = self._decoder.feed(chunk) if chunk else self._decoder.finish()
        self._is_stream = self._is_stream or bool(events)
        self._complete = any(self._parser.feed(event) for event in events)
        if self._complete:
            return self._end(None)
        if not chunk:
            return self._end(None if self._is_stream else self._wrong_document())
        return self._request.partial.drain()

    def _wrong_document(self) -> ErrorInfo | None:
        """The error of a 200 that is no event stream, for example a web page."""
        kind = self._response.headers.get("content-type", "") if self._response else ""
        if not kind or kind.startswith(self._call.content_type):
            return None
        return ErrorInfo(
            category="client",
            code="not_an_event_stream",
            message=f"{without_userinfo(self._call.url)} answered with {kind} instead of an event "
            "stream: check the base URL",
        )

    async def _http_error(self, response: Response) -> ErrorInfo:
        try:
            body = await response.read_body()
        except TransportFailure:
            body = b""  # the status alone says enough
        return self._call.read_error(response.status, body, response.headers)

    def _end(self, broken: ErrorInfo | None) -> Sequence[Event]:
        terminal = self._parser.finish(broken)
        if isinstance(terminal, StreamError):
            terminal = _clean_error(terminal, self._call)
        return [*self._request.partial.drain(), terminal]

    def _fail(self, error: ErrorInfo) -> Sequence[Event]:
        return [_clean_error(failed(self._request.partial, error), self._call)]


def document_of(event: SSEEvent, api: str) -> dict[str, Any] | None:
    """The JSON object of an event; None for anything else, which an answer does without."""
    try:
        document = load_json(event.data)
    except ValueError:
        log.warning("stream.undecodable_event", extra={"api": api, "size_bytes": len(event.data)})
        return None
    return document if isinstance(document, dict) else None


def finished(partial: PartialMessage, reason: StopReason) -> StreamDone:
    """The terminal event of an answer that is whole: its tool calls end now.

    Services are loose with the words for "stop" and "tool use": the calls themselves are the fact.
    """
    partial.close_prose()
    partial.close_tool_calls()
    if reason in ("stop", "tool_use"):
        reason = "tool_use" if partial.has_tool_calls else "stop"
    return StreamDone(reason, partial.complete(reason))


def unfinished(partial: PartialMessage, broken: ErrorInfo | None) -> ErrorInfo:
    """Why an answer that gave no reason for its end is an error."""
    if broken is not None:
        return broken
    if not partial.has_content:
        return protocol_error("the provider sent an empty answer", "empty_provider_stream")
    return protocol_error("the answer broke off before its end", "stream_truncated")


def filtered(message: str = "the provider's content filter stopped the answer") -> ErrorInfo:
    """The error of an answer that the provider refused to give."""
    return ErrorInfo(category="client", code="content_filter", message=message)


def failed(partial: PartialMessage, error: ErrorInfo) -> StreamError:
    """The terminal error event of a call, with what had arrived."""
    partial.close_prose()
    return StreamError("error", partial.broken("error", error))


async def fail_only(
    partial: PartialMessage, error: ErrorInfo
) -> AsyncGenerator[Sequence[Event], None]:
    """The events of a call that is not made."""
    yield [failed(partial, error)]


def merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later layers win; names are compared without case and come out in lower case."""
    return {name.lower(): value for layer in layers for name, value in layer.items()}


def _clean_error(event: StreamError, call: WireCall) -> StreamError:
    """Servers echo keys in their error texts: take them out before anybody reads it."""
    error = event.message.error
    if error is None:
        return event
    secrets = secrets_of(call.headers)
    message = redact(error.message, *secrets)
    provider_message = error.provider_message and redact(error.provider_message, *secrets)
    if message == error.message and provider_message == error.provider_message:
        return event
    cleaned = error.model_copy(update={"message": message, "provider_message": provider_message})
    return StreamError(
        event.reason,
        event.message.model_copy(update={"error": cleaned, "error_message": message}),
    )
