"""Publish and subscribe inside one runtime.

At most once, no replay, no persistence: only subscriptions that are open when an event is published
see it. Publishing never blocks and never raises because of a subscriber. Buffers are unbounded;
consumers that serve slow clients must shed those themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lemon_core import events
from lemon_core.events import Event
from lemon_core.ids import new_uuid, now_ms

BACKLOG_LIMIT = 10_000
SYSTEM_TOPIC = "system"
"""Where changes of the node itself are published: its secrets, its configuration."""
_NO_META: Mapping[str, object] = MappingProxyType({})


def run_topic(run_id: str) -> str:
    """Where everything about one run is published."""
    return f"run:{run_id}"


def session_topic(session_key: str) -> str:
    """Where everything about all runs of one session is published."""
    return f"session:{session_key}"


class Subscription:
    """A subscriber's own copy of a topic's events, in order; iterate it or take whole batches.

    Ends (iteration stops, `receive_batch` returns an empty list) when the bus stops.
    """

    def __init__(self, topic: str, on_backlog: Callable[[str, int], None] | None) -> None:
        self.topic = topic
        self._buffer: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closed = False
        self._over_limit = False
        self._on_backlog = on_backlog

    def push(self, event: Event) -> None:
        """Take an event; called by the bus, from any thread."""
        self._buffer.append(event)
        if len(self._buffer) >= BACKLOG_LIMIT and not self._over_limit:
            self._over_limit = True
            if self._on_backlog is not None:
                self._on_backlog(self.topic, len(self._buffer))
        self._signal()

    def close(self) -> None:
        """End the subscription; what is buffered can still be read."""
        self._closed = True
        self._signal()

    def _signal(self) -> None:
        if threading.get_ident() == self._thread:
            self._wake.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def receive_batch(self, limit: int = 256) -> list[Event]:
        """Wait until something is there, then return all of it up to `limit`; empty means ended."""
        while not self._buffer:
            if self._closed:
                return []
            self._wake.clear()
            # An event pushed by another thread between the check and the clear would be lost.
            if self._buffer or self._closed:
                continue
            await self._wake.wait()
        count = min(limit, len(self._buffer))
        batch = [self._buffer.popleft() for _ in range(count)]
        if len(self._buffer) < BACKLOG_LIMIT:
            self._over_limit = False
        return batch

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        batch = await self.receive_batch(limit=1)
        if not batch:
            raise StopAsyncIteration
        return batch[0]


class Bus:
    """Topics and their subscribers.

    `strict` makes a payload that does not fit its registered type an error of the publisher (in
    development and tests); otherwise it is coerced, or relayed as it is. `on_backlog(topic,
    waiting)` is told once per crossing that a subscriber fell far behind.
    """

    def __init__(
        self, *, strict: bool = True, on_backlog: Callable[[str, int], None] | None = None
    ) -> None:
        self.id = new_uuid()
        self.running = True
        self._strict = strict
        self._on_backlog = on_backlog
        # Replaced, never changed in place: publishers in other threads read it without a lock.
        self._topics: dict[str, tuple[Subscription, ...]] = {}

    def publish(self, topic: str, event: Event) -> None:
        """Hand `event` to every open subscription of `topic`; does nothing on a stopped bus."""
        self.publish_from(None, topic, event)

    def publish_from(self, source: Subscription | None, topic: str, event: Event) -> None:
        """As `publish`, but `source` does not get its own event."""
        if not self.running:
            return
        for subscription in self._topics.get(topic, ()):
            if subscription is not source:
                subscription.push(event)

    def publish_event(
        self,
        topic: str,
        event_type: str,
        payload: object,
        meta: Mapping[str, object] = _NO_META,
    ) -> Event:
        """Wrap `payload` as an event of `event_type` stamped now, publish it and return it."""
        checked = (events.cast if self._strict else events.coerce)(event_type, payload)
        event = Event(event_type, now_ms(), checked, meta)
        self.publish(topic, event)
        return event

    @contextmanager
    def subscribe(self, topic: str) -> Iterator[Subscription]:
        """A subscription that sees what is published from now on; it ends with the block."""
        subscription = Subscription(topic, self._on_backlog)
        self._topics[topic] = (*self._topics.get(topic, ()), subscription)
        try:
            yield subscription
        finally:
            rest = tuple(sub for sub in self._topics.get(topic, ()) if sub is not subscription)
            if rest:
                self._topics[topic] = rest
            else:
                self._topics.pop(topic, None)
            subscription.close()

    def has_subscribers(self, topic: str) -> bool:
        """True when somebody listens; lets a publisher skip work nobody sees."""
        return topic in self._topics

    def stop(self) -> None:
        """End every subscription; later publishing is ignored."""
        self.running = False
        for subscriptions in tuple(self._topics.values()):
            for subscription in subscriptions:
                subscription.close()
