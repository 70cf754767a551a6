"""The record of one run in memory, and the bounds on all of them together: pure state."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_EVENTS = 10_000
MAX_RECORD_BYTES = 8 * 1_048_576
MAX_TOTAL_BYTES = 64 * 1_048_576

RunRecordState = Literal["live", "finished", "lost"]


@dataclass(slots=True, eq=False)
class RunRecord:
    """One run: `live` here, `finished` with a summary, or `lost`: begun by a process that is gone.

    `events` are the latest, oldest first; a record that comes from the history has none.
    """

    run_id: str
    session_key: str
    started_at_ms: int
    digest: bytes | None = None
    summary: Mapping[str, object] | None = None
    finished_at_ms: int | None = None
    state: RunRecordState = "live"
    events: deque[object] = field(default_factory=deque)
    event_bytes: int = 0
    sizes: deque[int] = field(default_factory=deque)

    def clear_events(self) -> None:
        """Keep the summary only."""
        self.events.clear()
        self.sizes.clear()
        self.event_bytes = 0


class RecordBounds:
    """Keeps the events of all records within fixed sizes.

    Each record holds its latest events up to a number and a size; when all together are too large,
    finished runs lose their events first, the one that finished longest ago before the others.
    """

    def __init__(
        self,
        *,
        max_events: int = MAX_EVENTS,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self._max_events, self._max_record_bytes = max_events, max_record_bytes
        self._max_total_bytes = max_total_bytes
        self._finished: OrderedDict[str, RunRecord] = OrderedDict()
        self.total_bytes = 0

    def add(self, record: RunRecord, event: object, size_bytes: int) -> None:
        """Append `event`; the oldest ones make room."""
        record.events.append(event)
        record.sizes.append(size_bytes)
        record.event_bytes += size_bytes
        self.total_bytes += size_bytes
        while len(record.events) > self._max_events or (
            record.event_bytes > self._max_record_bytes and len(record.events) > 1
        ):
            record.events.popleft()
            dropped = record.sizes.popleft()
            record.event_bytes -= dropped
            self.total_bytes -= dropped
        self._shrink()

    def finished(self, record: RunRecord) -> None:
        """From now on `record` is among those that give up their events first."""
        self._finished[record.run_id] = record
        self._shrink()

    def dropped(self, record: RunRecord) -> None:
        """`record` has left memory."""
        self._finished.pop(record.run_id, None)
        self.total_bytes -= record.event_bytes

    def _shrink(self) -> None:
        while self.total_bytes > self._max_total_bytes and self._finished:
            _, oldest = self._finished.popitem(last=False)
            self.total_bytes -= oldest.event_bytes
            oldest.clear_events()
