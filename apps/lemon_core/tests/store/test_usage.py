"""Counted runs in the store (specification lemon_core 8.3)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.store import (
    ModelUsage,
    Store,
    StoreCorrupt,
    StoreUnavailable,
    Usage,
    UsageRow,
    UsageStore,
)
from lemon_core.usage import UsageTotals

pytestmark = pytest.mark.anyio

ONE = Usage.of_run(UsageTotals(input=10, output=2, total=12, cost_usd=0.5))


def test_what_nobody_reported_stays_unknown() -> None:
    unknown = Usage.of_run(None)
    assert unknown == Usage(runs=1)
    assert unknown + ONE == Usage(2, 1, 1, 10, 2, None, None, 12, 0.5)
    assert Usage(2, 2, 2, 20, 4, None, None, 24, 1.0) == ONE + ONE
    assert Usage.of_run(UsageTotals(cost_usd=1.0)) == Usage(1, 0, 1, cost_usd=1.0)


def row(date: str, usage: Usage = ONE, model: str = "m") -> UsageRow:
    return UsageRow(date, (ModelUsage("openai", model, usage),))


async def test_days_and_all_time_add_up_by_model(store: Store) -> None:
    usage = UsageStore(store)
    assert (await usage.days(), await usage.overall()) == ([], None)
    for date in ("2026-01-02", "2026-01-01", "2026-01-02"):
        await usage.add("usage_records", date, row(date))
        await usage.add("usage_stats", "all", row(date))
    await usage.add("usage_stats", "all", row("2026-01-01", model="a"))
    days = [row("2026-01-01"), row("2026-01-02", ONE + ONE)]
    assert await usage.days() == days
    assert await usage.days("2026-01-02") == days[1:]
    overall = await usage.overall()
    assert overall == UsageRow(
        "2026-01-02",
        (ModelUsage("openai", "a", ONE), ModelUsage("openai", "m", ONE + ONE + ONE)),
    )
    assert overall.total == ONE + ONE + ONE + ONE


async def test_the_current_day_starts_again_and_takes_no_stragglers(store: Store) -> None:
    usage = UsageStore(store)
    assert await usage.current("2026-01-01") == UsageRow("2026-01-01")
    for date in ("2026-01-01", "2026-01-02", "2026-01-01", "2026-01-02"):
        await usage.add("usage_data", "current", row(date))
    assert await usage.current("2026-01-02") == row("2026-01-02", ONE + ONE)
    assert (await usage.current("2026-01-03")).total == Usage()


async def test_concurrent_additions_all_count(store: Store) -> None:
    usage = UsageStore(store)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(usage.add, "usage_stats", "all", row("2026-01-01"))
    overall = await usage.overall()
    assert overall is not None
    assert overall.total.runs == 10


async def test_unreadable_usage_is_never_no_usage(store: Store) -> None:
    usage = UsageStore(store)
    await store.put("usage_data", "current", {"models": []})
    with pytest.raises(StoreCorrupt):
        await usage.current("2026-01-01")
    await store.close()
    with pytest.raises(StoreUnavailable):
        await usage.days()
