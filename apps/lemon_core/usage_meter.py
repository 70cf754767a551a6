"""Core's own finalize hook: counts each finished run's tokens and cost.

The hook only adds in memory; one task writes what came together as a few additions to the store, so
that a busy runtime pays them once a moment and not for each run. An orderly end writes the rest. A
crash may lose what was not written yet, but no run is ever counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.errors import StoreCorrupt, StoreUnavailable
from lemon_core.store.usage import (
    ALL,
    CURRENT,
    DATA,
    RECORDS,
    STATS,
    ModelUsage,
    Usage,
    UsageRow,
    UsageStore,
    UsageTable,
    merge_models,
)
from lemon_core.usage import normalize_usage
from lemon_core.write_behind import WriteBehind

log = get_logger("lemon_core.usage")

Place = tuple[UsageTable, str, str]
"""Table, key and date that an addition goes to."""


class UsageMeter:
    """Counts what is finalized; `serve` writes it."""

    def __init__(self, store: UsageStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._waiting: dict[Place, UsageRow] = {}
        self._behind = WriteBehind(self._write, clock, event="usage.not_written")

    def count(self, facts: Mapping[str, object]) -> None:
        """The finalize hook: count the run of `facts`, on the day on which it ended."""
        summary = facts.get("summary")
        if not isinstance(summary, Mapping):
            return
        used = Usage.of_run(normalize_usage(_reported(summary)))
        provider, model = _model_of(summary)
        date = utc_date(
            getattr(facts.get("record"), "finished_at_ms", None) or self._clock.now_ms()
        )
        row = UsageRow(date, (ModelUsage(provider, model, used),))
        places: tuple[Place, ...]
        places = ((RECORDS, date, date), (DATA, CURRENT, date), (STATS, ALL, date))
        for place in places:
            self._add(place, row)
        self._behind.wake()

    async def serve(self) -> None:
        """Write what is counted, until cancelled; call `close` afterwards."""
        await self._behind.serve()

    async def close(self) -> None:
        """Write what is left; a failure is logged."""
        await self._behind.close()

    async def flush(self) -> None:
        """Return when every run counted before is written; raises `StoreError`."""
        await self._behind.flush()

    async def _write(self) -> None:
        for place in list(self._waiting):
            await self._write_row(place, self._waiting.pop(place))

    async def _write_row(self, place: Place, row: UsageRow) -> None:
        table, key, _ = place
        try:
            await self._store.add(table, key, row)
        except StoreCorrupt as exc:
            # Trying again would not mend the row, and must not hold up the others.
            log.error("usage.row_damaged", table=table, key=key, error=str(exc))
        except BaseException as exc:  # cancelled, it has not been written either
            # Written again, an addition that may have been committed would count twice.
            if not (isinstance(exc, StoreUnavailable) and exc.outcome_unknown):
                self._add(place, row)
            raise

    def _add(self, place: Place, row: UsageRow) -> None:
        before = self._waiting.get(place)
        if before is not None:
            row = UsageRow(row.date, merge_models([before, row]))
        self._waiting[place] = row


def utc_date(time_ms: int) -> str:
    """The day of a wall-clock time, as `YYYY-MM-DD` in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()


def _reported(summary: Mapping[str, object]) -> Mapping[str, object] | None:
    completed = summary.get("completed")
    usage = completed.get("usage") if isinstance(completed, Mapping) else None
    return usage if isinstance(usage, Mapping) else None


def _model_of(summary: Mapping[str, object]) -> tuple[str, str]:
    """Provider and model of a run, "" where it did not say."""
    provider, model = (
        value if isinstance(value := summary.get(name), str) else ""
        for name in ("provider", "model")
    )
    # A request may name its model with the provider in front.
    return provider, model.removeprefix(f"{provider}:") if provider else model
