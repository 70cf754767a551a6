"""One reader of one run's stream on the client's side: what it has, and what it may take next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from lemon_core.bridges import RunSnapshot, StreamItem
from lemon_core.errors import LemonError
from lemon_core.events import Event
from lemon_core.journal import TERMINAL_TYPES, event_seq

QUEUE_LIMIT = 4_096


class RunReader:
    """Takes items in order: never one twice, never one after a gap.

    `take` is called for every item that arrives for the run, whatever it was sent for; what does
    not fit is left out. After a gap the reader says `behind`, and its run is subscribed to again
    from `last_seq`; not before there is room again when it was `full`. `last_seq` counts within
    `epoch`.
    """

    def __init__(self, run_id: str, after_seq: int, deliver: Callable[[StreamItem], bool]) -> None:
        self.run_id = run_id
        self.last_seq = after_seq
        self.epoch: str | None = None
        self.behind = False
        self.full = False
        self.over = False
        self._deliver = deliver
        self._replay_due = True

    def subscribed(self, epoch: str) -> None:
        """The run is being subscribed to anew; what arrives before the replay may leave gaps."""
        if self.epoch is None:
            self.epoch = epoch
        self.behind = self.full = False
        self._replay_due = True

    def take(self, item: StreamItem) -> None:
        """Take `item` if it is the next thing to know."""
        if self.over:
            return
        if isinstance(item, Event):
            self._take_event(item)
        elif self._is_news(item):
            if self._offer(item):
                self.last_seq, self.epoch = item.last_event_seq, item.stream_epoch
                self.over = item.state == "terminal"
        else:
            self._replay_due = False

    def _is_news(self, snapshot: RunSnapshot) -> bool:
        # One that tells of the end does so for a run without events too.
        return (
            snapshot.state == "terminal"
            or snapshot.stream_epoch != self.epoch
            or snapshot.last_event_seq > self.last_seq
        )

    def _take_event(self, event: Event) -> None:
        seq = event_seq(event)
        if seq == self.last_seq + 1:
            if not self._offer(event):
                return
            self.last_seq = seq
            self.over = event.type in TERMINAL_TYPES
        elif seq > self.last_seq:
            self.behind = self.behind or not self._replay_due
        elif event.type in TERMINAL_TYPES:
            self.over = True  # told once more, because there is nothing after it

    def _offer(self, item: StreamItem) -> bool:
        self._replay_due = False
        if self._deliver(item):
            return True
        self.behind = self.full = True
        return False


class ReaderQueue:
    """What a reader has taken and its user has not yet; a full queue refuses, nothing is lost."""

    def __init__(self) -> None:
        self._items: deque[StreamItem] = deque()
        self._woken = asyncio.Event()
        self._ended = False
        self._failure: LemonError | None = None

    def put(self, item: StreamItem) -> bool:
        """Queue `item`; False when there is no room."""
        if len(self._items) >= QUEUE_LIMIT:
            return False
        self._items.append(item)
        self._woken.set()
        return True

    def end(self, failure: LemonError | None = None) -> None:
        """Nothing follows; `failure` is raised after what is queued."""
        self._ended, self._failure = True, failure
        self._woken.set()

    async def get(self) -> list[StreamItem]:
        """All that is queued, waiting for the first; empty means over. Raises the failure."""
        await self._woken.wait()
        items = list(self._items)
        self._items.clear()
        if not self._ended:
            self._woken.clear()
        elif not items and self._failure is not None:
            raise self._failure
        return items
