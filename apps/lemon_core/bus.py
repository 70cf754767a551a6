"""Publish and subscribe inside one runtime.

At most once, no replay, no persistence: only subscriptions that are open when an event is published
see it. Publishing never blocks and never raises because of a subscriber. Buffers are unbounded;
consumers that serve slow clients must shed those themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Literal

import anyio

from lemon_core import events
from lemon_core.events import Completion, Event, RunAbsorbed, RunCompleted, RunFailed
from lemon_core.ids import new_uuid, now_ms
from lemon_core.logs import get_logger

BACKLOG_LIMIT = 10_000
SYSTEM_TOPIC = "system"
"""Where changes of the node itself are published: its secrets, its configuration."""
_NO_META: Mapping[str, object] = MappingProxyType({})

log = get_logger("lemon_core.bus")


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
        # Awake already, the receiver looks into the buffer once more before it waits.
        if not self._wake.is_set():
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


class Listener(Subscription):
    """Hands events to a function on its own loop instead of keeping them; get it with
    `Bus.listening`."""

    def __init__(self, topic: str, take: Callable[[Event], None]) -> None:
        super().__init__(topic, None)
        self._take = take

    def push(self, event: Event) -> None:
        """Hand `event` over, at once when the publisher is on the loop's thread."""
        if threading.get_ident() == self._thread:
            self._hand_over(event)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_over, event)

    def _hand_over(self, event: Event) -> None:
        if self._closed:
            return
        try:
            self._take(event)
        except Exception:  # a publisher must not suffer from whoever listens
            log.exception("bus.listener_failed", topic=self.topic, type=event.type)


class RunWaiter(Subscription):
    """Waits for the end of one run, wherever it leads; get it with `Bus.watch_run`."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        super().__init__(run_topic(run_id), None)
        self._bus = bus
        self.topics = {self.topic}

    def push(self, event: Event) -> None:
        """Take what ends the run; called by the bus, from any thread."""
        if event.type == "run_absorbed":
            absorbed = events.coerce(event.type, event.payload)
            if isinstance(absorbed, RunAbsorbed):
                # At once: the absorbing run may end before a waiting task gets its turn.
                self._follow(run_topic(absorbed.absorbed_by))
        elif event.type in ("run_completed", "run_failed"):
            super().push(event)

    async def completion(self, timeout_ms: float) -> Completion | Literal["timeout"]:
        """How the run ended, or `timeout` when it has not within `timeout_ms`.

        A run that was absorbed ends as the one that took it; a run whose process was lost, and a
        bus that stops, end as a completion that is not ok.
        """
        with anyio.move_on_after(timeout_ms / 1000):
            while batch := await self.receive_batch(limit=1):
                match events.coerce(batch[0].type, batch[0].payload):
                    case RunCompleted(completed=completed):
                        return completed
                    case RunFailed(run_id=run_id, reason=reason, session_key=session_key):
                        return Completion(
                            ok=False, error=reason, run_id=run_id, session_key=session_key
                        )
            return Completion(ok=False, error="bus_stopped")
        return "timeout"

    def _follow(self, topic: str) -> None:
        if topic not in self.topics and not self._closed:
            self.topics.add(topic)
            self._bus.attach(topic, self)


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
        # Each tuple is replaced, never changed in place: publishers in other threads read them
        # without the lock, which keeps two changes of one topic apart.
        self._topics: dict[str, tuple[Subscription, ...]] = {}
        self._changing = threading.Lock()

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
        self.attach(topic, subscription)
        try:
            yield subscription
        finally:
            self._detach(topic, subscription)
            subscription.close()

    @contextmanager
    def watch_run(self, run_id: str) -> Iterator[RunWaiter]:
        """A waiter for the end of `run_id`: open it before the run is submitted."""
        waiter = RunWaiter(self, run_id)
        self.attach(waiter.topic, waiter)
        try:
            yield waiter
        finally:
            waiter.close()
            for topic in tuple(waiter.topics):
                self._detach(topic, waiter)

    @contextmanager
    def listening(self, topics: Sequence[str], take: Callable[[Event], None]) -> Iterator[Listener]:
        """`take` is called with each event of `topics` from now on, until the block ends.

        It has to return at once; it runs inside the publisher's call where both are on one thread.
        """
        listener = Listener(topics[0], take)
        for topic in topics:
            self.attach(topic, listener)
        try:
            yield listener
        finally:
            listener.close()
            for topic in topics:
                self._detach(topic, listener)

    async def wait_run(self, run_id: str, timeout_ms: float) -> Completion | Literal["timeout"]:
        """How `run_id` ended, on through a run that absorbs it, or `timeout`.

        Only an end from now on is seen; whoever submits the run itself opens `watch_run` first.
        """
        with self.watch_run(run_id) as waiter:
            return await waiter.completion(timeout_ms)

    def attach(self, topic: str, subscription: Subscription) -> None:
        """Have `subscription` see `topic` too; `subscribe` and `watch_run` also end it again."""
        with self._changing:
            self._topics[topic] = (*self._topics.get(topic, ()), subscription)
        if not self.running:
            subscription.close()

    def _detach(self, topic: str, subscription: Subscription) -> None:
        with self._changing:
            rest = tuple(sub for sub in self._topics.get(topic, ()) if sub is not subscription)
            if rest:
                self._topics[topic] = rest
            else:
                self._topics.pop(topic, None)

    def has_subscribers(self, topic: str) -> bool:
        """True when somebody listens; lets a publisher skip work nobody sees."""
        return topic in self._topics

    def stop(self) -> None:
        """End every subscription; later publishing is ignored."""
        self.running = False
        for subscriptions in tuple(self._topics.values()):
            for subscription in subscriptions:
                subscription.close()
