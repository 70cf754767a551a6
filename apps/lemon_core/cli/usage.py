"""`lemon usage`: tokens and cost of the runs so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, open_core, print_json, text_table

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext
    from lemon_core.store import ModelUsage, Usage, UsageRow

app = command_app("Show tokens and cost.")

_PERIODS = (("today", 1), ("7 days", 7), ("30 days", 30))


@dataclass(frozen=True, slots=True)
class Period:
    """What was used from the day `since` on; of all time when that is None."""

    name: str
    since: str | None
    usage: Usage
    models: tuple[ModelUsage, ...]


@app.command()
def usage(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Show tokens and cost of today, of 7 and 30 days and of all time. Days are UTC."""
    import anyio

    context = command_context(ctx)

    async def run() -> tuple[str, list[Period]]:
        return await _load(context)

    today, periods = anyio.run(run)
    if as_json:
        # Limits are known to whoever sets them; core knows none.
        print_json({"today": today, "periods": list(map(_document, periods)), "quotas": None})
        return 0
    print(text_table([("", *_HEADER), *((p.name, *_cells(p.usage)) for p in periods)]))
    everything = periods[-1]
    if everything.models:
        by_model = [(_name(row), *_cells(row.usage)) for row in everything.models]
        print()
        print(text_table([("by model", *_HEADER), *by_model]))
    if (unpriced := everything.usage.runs - everything.usage.runs_priced) > 0:
        print()
        print(f"The cost of {unpriced} of {everything.usage.runs} runs is not known.")
    return 0


async def _load(context: CommandContext) -> tuple[str, list[Period]]:
    from lemon_core.store import UsageStore
    from lemon_core.usage_meter import utc_date

    async with open_core(context) as core:
        store, today = UsageStore(core.store), utc_date(core.clock.now_ms())
        starts = {name: _days_before(today, count - 1) for name, count in _PERIODS}
        days = await store.days(min(starts.values()))
        found = [
            _period(name, since, [row for row in days if row.date >= since])
            for name, since in starts.items()
        ]
        overall = await store.overall()
        return today, [*found, _period("all", None, [] if overall is None else [overall])]


def _period(name: str, since: str | None, rows: list[UsageRow]) -> Period:
    from lemon_core.store import Usage
    from lemon_core.store.usage import merge_models

    total = sum((row.total for row in rows), Usage())
    return Period(name, since, total, merge_models(rows))


def _days_before(today: str, count: int) -> str:
    return (date.fromisoformat(today) - timedelta(days=count)).isoformat()


def _document(period: Period) -> dict[str, object]:
    models = [
        {"provider": row.provider or None, "model": row.model or None, **asdict(row.usage)}
        for row in period.models
    ]
    name, since = period.name.replace(" ", "_"), period.since
    return {"period": name, "since": since, **asdict(period.usage), "models": models}


_HEADER = ("runs", "input", "output", "cache read", "cache write", "cost")


def _cells(usage: Usage) -> tuple[str, ...]:
    counts = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    return (
        f"{usage.runs:,}",
        *(_known(count, lambda value: f"{value:,}") for count in counts),
        _known(usage.cost_usd, lambda value: f"${value:,.4f}"),
    )


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _name(row: ModelUsage) -> str:
    return ":".join(part for part in (row.provider, row.model) if part) or "unknown"
