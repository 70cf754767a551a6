"""A reader's view of an agent's events: lossless, in order, and never in the way of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio

from lemon_agent.events import AgentEvent


class EventSubscription:
    """Every event from the moment of subscribing; `with` it, so that leaving ends it.

    Unbounded, because a session's persistence relies on seeing everything: a reader that stays away
    costs memory and nothing else. It ends when the agent is left, after all events were read.
    """

    def __init__(self, on_close: Callable[[EventSubscription], None]) -> None:
        self._on_close = on_close
        self._ready: deque[AgentEvent] = deque()
        self._wakeup: anyio.Event | None = None
        self._closed = False

    def push(self, event: AgentEvent) -> None:
        """Add an event; dropped after `close`."""
        if not self._closed:
            self._ready.append(event)
            self._wake()

    def close(self) -> None:
        """End the subscription; what has arrived can still be read."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._wake()

    async def receive_batch(self) -> list[AgentEvent]:
        """Everything that is ready, at least one event; empty once there is nothing to come."""
        await self._wait()
        batch = list(self._ready)
        self._ready.clear()
        return batch

    async def _wait(self) -> None:
        while not self._ready and not self._closed:
            self._wakeup = anyio.Event()
            await self._wakeup.wait()

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()
            self._wakeup = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        await self._wait()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()
