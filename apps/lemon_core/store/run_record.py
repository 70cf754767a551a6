"""The record of one run in memory, and the bounds on all of them together: pure state."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_EVENTS = 10_000
MAX_RECORD_BYTES = 8 * 1_048_576
MAX_TOTAL_BYTES = 64 * 1_048_576
MAX_FINISHED_BYTES = 4 * 1_048_576

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


class RecordBounds:
    """Keeps the events of all records within fixed sizes.

    Each record holds its latest events up to a number and a size. Finished runs have a bound of
    their own, and give way when all together are too large: the one that finished longest ago
    first. What gives way is named by `excess`, and its record leaves memory as a whole, for the
    history knows everything but the events.
    """

    def __init__(
        self,
        *,
        max_events: int = MAX_EVENTS,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
        max_finished_bytes: int = MAX_FINISHED_BYTES,
    ) -> None:
        self._max_events, self._max_record_bytes = max_events, max_record_bytes
        self._max_total_bytes, self._max_finished_bytes = max_total_bytes, max_finished_bytes
        self._finished: OrderedDict[str, RunRecord] = OrderedDict()
        self._finished_bytes = 0
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

    def finished(self, record: RunRecord) -> None:
        """From now on `record` is among those that give way first."""
        self._finished[record.run_id] = record
        self._finished_bytes += record.event_bytes

    def dropped(self, record: RunRecord) -> None:
        """`record` has left memory."""
        if self._finished.pop(record.run_id, None) is not None:
            self._finished_bytes -= record.event_bytes
        self.total_bytes -= record.event_bytes

    def excess(self) -> str | None:
        """The finished run whose record has to leave memory now; None when all may stay."""
        over = self.total_bytes > self._max_total_bytes
        if not self._finished or not (over or self._finished_bytes > self._max_finished_bytes):
            return None
        return next(iter(self._finished))
