"""Tokens and cost of finished runs: by day and model, of the day that goes on, and of all time.

Days are UTC: nodes that share a store, and the bills of providers, agree about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeVar

from lemon_core.store.core import ABSENT, Store
from lemon_core.store.rows import parse_row
from lemon_core.usage import UsageTotals

UsageTable = Literal["usage_records", "usage_data", "usage_stats"]
RECORDS: Final = "usage_records"
DATA: Final = "usage_data"
STATS: Final = "usage_stats"
CURRENT: Final = "current"
ALL: Final = "all"

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Usage:
    """What some runs used together. A number that none of them reported is None, never zero.

    `runs_reported` and `runs_priced` tell of how many of `runs` the tokens and the cost are known.
    """

    runs: int = 0
    runs_reported: int = 0
    runs_priced: int = 0
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost_usd: float | None = None

    @classmethod
    def of_run(cls, totals: UsageTotals | None) -> Usage:
        """The usage of one run, of which a provider may have reported nothing."""
        if totals is None:
            return cls(runs=1)
        return cls(
            runs=1,
            runs_reported=int(totals.input is not None or totals.output is not None),
            runs_priced=int(totals.cost_usd is not None),
            input=totals.input,
            output=totals.output,
            cache_read=totals.cache_read,
            cache_write=totals.cache_write,
            total=totals.total,
            cost_usd=totals.cost_usd,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.runs + other.runs,
            self.runs_reported + other.runs_reported,
            self.runs_priced + other.runs_priced,
            _plus(self.input, other.input),
            _plus(self.output, other.output),
            _plus(self.cache_read, other.cache_read),
            _plus(self.cache_write, other.cache_write),
            _plus(self.total, other.total),
            _plus(self.cost_usd, other.cost_usd),
        )


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What the runs of one model used; `provider` and `model` are "" when the run did not say."""

    provider: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What was used on `date` (`YYYY-MM-DD`), or, of all time, until `date`; by model."""

    date: str
    models: tuple[ModelUsage, ...] = ()

    @property
    def total(self) -> Usage:
        """All models together."""
        return sum((row.usage for row in self.models), Usage())


class UsageStore:
    """Counted runs. Reads and writes raise `StoreError`: usage that is unknown is not zero."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, table: UsageTable, key: str, added: UsageRow) -> None:
        """Add to one row, however many nodes add to it at once.

        The row `current` starts again with each new date, and takes nothing of an older one.
        """
        while True:
            stored = await self._store.load(table, key)
            total = _added(table, None if stored is None else _row(table, stored), added)
            value = {"date": total.date, "models": [asdict(row) for row in total.models]}
            expected = ABSENT if stored is None else stored
            if await self._store.compare_and_swap(table, key, expected, value):
                return

    async def days(self, since: str = "") -> list[UsageRow]:
        """The days from the date `since` on on which something ran, the oldest first."""
        rows = await self._store.load_all(RECORDS)
        found = [_row(RECORDS, value) for key, value in rows if str(key) >= since]
        return sorted(found, key=lambda row: row.date)

    async def overall(self) -> UsageRow | None:
        """Everything since counting began; None when nothing has run."""
        stored = await self._store.load(STATS, ALL)
        return None if stored is None else _row(STATS, stored)

    async def current(self, today: str) -> UsageRow:
        """What the day `today` has used so far, for whoever watches a limit."""
        stored = await self._store.load(DATA, CURRENT)
        row = None if stored is None else _row(DATA, stored)
        return row if row is not None and row.date == today else UsageRow(today)


def merge_models(rows: Iterable[UsageRow]) -> tuple[ModelUsage, ...]:
    """The usage of several rows together, one entry for each model, ordered by name."""
    models: dict[tuple[str, str], Usage] = {}
    for row in rows:
        for entry in row.models:
            key = (entry.provider, entry.model)
            models[key] = models.get(key, Usage()) + entry.usage
    return tuple(ModelUsage(*key, models[key]) for key in sorted(models))


def _added(table: UsageTable, stored: UsageRow | None, added: UsageRow) -> UsageRow:
    if stored is None:
        return added
    if table == DATA and stored.date != added.date:
        return max(stored, added, key=lambda row: row.date)
    return UsageRow(max(stored.date, added.date), merge_models([stored, added]))


def _row(table: str, value: object) -> UsageRow:
    return parse_row(UsageRow, value, f"a row of {table}")


def _plus(left: N | None, right: N | None) -> N | None:
    if left is None:
        return right
    return left if right is None else left + right
