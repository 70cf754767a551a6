"""`lemon usage` (specification lemon_cli, row `usage`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import anyio
import pytest

from lemon_core.cli.usage import app
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.store import (
    ModelUsage,
    StoreSettings,
    Usage,
    UsageRow,
    UsageStore,
    open_store,
)
from lemon_core.testing import temp_home
from lemon_core.tests.cli.commands import run_command
from lemon_core.usage_meter import utc_date

PRICED = Usage(1, 1, 1, 1_000, 200, 30, 4, 1_234, 0.5)
UNPRICED = Usage(1, 1, 0, 10, 2)


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        yield home


@pytest.fixture
def home(paths: PathSettings) -> Path:
    return paths.home


@pytest.fixture
def today() -> str:
    return utc_date(SystemClock().now_ms())


async def add(store: UsageStore, day: str, used: ModelUsage) -> None:
    await store.add("usage_records", day, UsageRow(day, (used,)))
    await store.add("usage_stats", "all", UsageRow(day, (used,)))


@pytest.fixture
def used(paths: PathSettings, today: str) -> PathSettings:
    """Runs of today, of six, seven, 29 and 30 days ago, and one model that nobody named."""

    async def fill() -> None:
        async with open_store(StoreSettings("sqlite", paths.store_dir), SystemClock()) as store:
            usage = UsageStore(store)
            for days in (0, 6, 7, 29, 30):
                day = (date.fromisoformat(today) - timedelta(days=days)).isoformat()
                await add(usage, day, ModelUsage("openai", "m", PRICED))
            await add(usage, today, ModelUsage("", "", UNPRICED))

    anyio.run(fill)
    return paths


def test_periods_and_models(
    used: PathSettings, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, home=home) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "         runs  input  output  cache read  cache write     cost",
        "today       2  1,010     202          30            4  $0.5000",
        "7 days      3  2,010     402          60            8  $1.0000",
        "30 days     5  4,010     802         120           16  $2.0000",
        "all         6  5,010   1,002         150           20  $2.5000",
        "",
        "by model  runs  input  output  cache read  cache write     cost",
        "unknown      1     10       2           -            -        -",
        "openai:m     5  5,000   1,000         150           20  $2.5000",
        "",
        "The cost of 1 of 6 runs is not known.",
    ]


def test_json_is_one_document(
    used: PathSettings, home: Path, today: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, "--json", home=home) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["today"], document["quotas"]) == (today, None)
    periods = {period["period"]: period for period in document["periods"]}
    assert {name: period["runs"] for name, period in periods.items()} == {
        "today": 2,
        "7_days": 3,
        "30_days": 5,
        "all": 6,
    }
    assert periods["today"]["since"] == today
    assert periods["all"]["since"] is None
    assert periods["today"]["models"][0] == {
        "provider": None,
        "model": None,
        "runs": 1,
        "runs_reported": 1,
        "runs_priced": 0,
        "input": 10,
        "output": 2,
        "cache_read": None,
        "cache_write": None,
        "total": None,
        "cost_usd": None,
    }


def test_without_runs_nothing_is_zero_tokens(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, home=home) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["today", "0", "-", "-", "-", "-", "-"]
    assert len(lines) == 5
