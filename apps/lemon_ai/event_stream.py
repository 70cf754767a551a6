"""EventStream: the consumer's side of one model call.

Pull based: the consumer's iteration drives the adapter, so backpressure needs no queue. An adapter
hands over batches (whatever one network read yielded); each pull of a batch runs inside its own
cancel scope, and nothing is ever yielded inside one. The stream itself delivers `StreamStart`
first and guarantees one terminal event, whatever the adapter does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

import anyio

from lemon_ai.errors import ModelCanceled, ModelError, error_of_exception, protocol_error
from lemon_ai.events import (
    Event,
    StreamCanceled,
    StreamDone,
    StreamError,
    StreamStart,
    TerminalEvent,
)
from lemon_ai.partial import PartialMessage
from lemon_ai.types import AssistantMessage, get_text

# Reasons given by a consumer; any other end from outside (`timeout`) is the provider's fault.
CONSUMER_REASONS = frozenset(
    {
        "aborted",
        "redirected",
        "canceled",
        "user_abort",
        "user_requested",
        "assistant_aborted",
        "shutdown",
    }
)

Release = Callable[[TerminalEvent | None], None]
"""Gives back what `admit` took; told how the call ended, None when nobody read on to the end."""

Batches = AsyncGenerator[Sequence[Event], None]


class EventStream:
    """`async with` it, then `async for event in stream`, or `await stream.result()`.

    Entering raises what `admit` raises; what it returns is called once, when the stream is left.

    Leaving the block always closes the connection, also when the iteration stopped early.
    """

    def __init__(
        self,
        batches: Callable[[PartialMessage], Batches],
        partial: PartialMessage,
        *,
        timeout_ms: int | None,
        admit: Callable[[], Release] | None = None,
    ) -> None:
        self._open = batches
        self._partial = partial
        self._timeout_ms = timeout_ms
        self._admit = admit
        self._release: Release | None = None
        self._on_close: Callable[[], Awaitable[None]] | None = None
        self._batches: Batches | None = None
        self._deadline = float("inf")
        self._scope: anyio.CancelScope | None = None
        self._cancel_reason: str | None = None
        self._ready: deque[Event] = deque()
        self._terminal: TerminalEvent | None = None

    def on_close(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have this awaited when the stream is left, for what lives no longer than the stream."""
        self._on_close = callback

    def follow(self, partial: PartialMessage) -> None:
        """Have the message grow in `partial`, for a stream that passes another one's events on."""
        self._partial = partial

    @property
    def partial(self) -> PartialMessage:
        """The live view of the message."""
        return self._partial

    @property
    def terminal(self) -> TerminalEvent | None:
        """The terminal event once it has been produced."""
        return self._terminal

    async def __aenter__(self) -> Self:
        if self._admit is not None:
            self._release = self._admit()
        if self._timeout_ms is not None:
            self._deadline = anyio.current_time() + self._timeout_ms / 1000
        self._batches = self._open(self._partial)
        self._ready.append(StreamStart(self._partial))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._batches is not None:
                await self._batches.aclose()
        finally:
            self._batches = None
            if self._release is not None:
                release, self._release = self._release, None
                release(self._terminal)
            if self._on_close is not None:
                on_close, self._on_close = self._on_close, None
                await on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._ready and not await self._fill():
            raise StopAsyncIteration
        return self._ready.popleft()

    async def next_batch(self) -> list[Event]:
        """Everything that is ready, at least one event; empty after the terminal event.

        For consumers that forward events: one wake-up per network read instead of one per token.
        """
        if not self._ready and not await self._fill():
            return []
        batch = list(self._ready)
        self._ready.clear()
        return batch

    def cancel(self, reason: str = "canceled") -> None:
        """End the stream with `StreamCanceled(reason)`; a pull that waits is woken at once.

        May be called from another task of the same loop and repeatedly: the first reason counts.
        """
        if self._terminal is None and self._cancel_reason is None:
            self._cancel_reason = reason
            if self._scope is not None:
                self._scope.cancel()

    async def result(self) -> AssistantMessage:
        """Drain the stream; the final message, or ModelError / ModelCanceled."""
        while await self.next_batch():
            pass
        match self._terminal:
            case StreamDone(message=message):
                return message
            case StreamError(message=message):
                raise ModelError(message)
            case StreamCanceled(reason=reason, message=message):
                raise ModelCanceled(message, reason)
            case None:
                raise RuntimeError("the stream is not open: use it inside `async with`")

    async def collect_text(self) -> str:
        """Drain the stream; the joined text of the final message."""
        return get_text(await self.result())

    # -- the pull --------------------------------------------------------------------------------

    async def _fill(self) -> bool:
        while not self._ready:
            if self._terminal is not None:
                return False
            if self._batches is None:
                raise RuntimeError("the stream is not open: use it inside `async with`")
            self._take(await self._pull(self._batches))
        return True

    async def _pull(self, batches: Batches) -> Sequence[Event]:
        if self._cancel_reason is not None:
            return self._canceled()
        batch: Sequence[Event] | None = None
        with anyio.CancelScope(deadline=self._deadline) as self._scope:
            try:
                batch = await batches.__anext__()
            except StopAsyncIteration:
                batch = self._broken_off()
            except Exception as exc:  # a broken adapter ends the stream as an error event
                batch = self._failed(exc)
        self._scope = None
        if batch is None:
            return self._canceled()
        return batch

    def _take(self, batch: Sequence[Event]) -> None:
        for event in batch:
            self._ready.append(event)
            if isinstance(event, StreamDone | StreamError | StreamCanceled):
                self._terminal = event
                return

    def _canceled(self) -> Sequence[Event]:
        reason = self._cancel_reason or "timeout"
        self._partial.close_prose()
        message = self._partial.broken("aborted" if reason in CONSUMER_REASONS else "error")
        return [*self._partial.drain(), StreamCanceled(reason, message)]

    def _failed(self, exc: Exception) -> Sequence[Event]:
        self._partial.close_prose()
        message = self._partial.broken("error", error_of_exception(exc))
        return [*self._partial.drain(), StreamError("error", message)]

    def _broken_off(self) -> Sequence[Event]:
        self._partial.close_prose()
        error = protocol_error("the adapter ended without a terminal event")
        return [*self._partial.drain(), StreamError("error", self._partial.broken("error", error))]
