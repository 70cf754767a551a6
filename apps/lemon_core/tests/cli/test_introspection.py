"""`lemon introspection` (specification lemon_core 17; lemon_cli 2.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
import typer

from lemon_core.cli.introspection import app, since_time
from lemon_core.introspection import Introspection
from lemon_core.store import StoreSettings, open_store
from lemon_core.testing import FakeClock, temp_home
from lemon_core.tests.cli.commands import run_command

Capture = pytest.CaptureFixture[str]
HOUR = 3_600_000
NOW = 1_800_000_000_000


@pytest.fixture
def home() -> Iterator[Path]:
    with temp_home() as paths:
        yield paths.home


def recorded(home: Path, age_ms: int = 0) -> None:
    """Three records of two runs, the newest `age_ms` before now."""
    clock = FakeClock(now_ms=int(datetime.now(UTC).timestamp() * 1000) - age_ms)

    async def write() -> None:
        async with open_store(StoreSettings("sqlite", home / ".lemon" / "store"), clock) as store:
            records = Introspection(store, clock)
            for number, (kind, run) in enumerate(
                [("run_started", "run_1"), ("run_started", "run_2"), ("run_ended", "run_1")]
            ):
                await clock.advance(1)
                records.record(
                    kind,
                    {"number": number, "text": "two\nlines"},
                    run_id=run,
                    session_key=f"agent:{run}:main",
                    agent_id=f"of_{run}",
                )
            await records.close()

    anyio.run(write)


def events(home: Path, capsys: Capture, *arguments: str) -> list[tuple[str, str]]:
    assert run_command(app, "--json", *arguments, home=home) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["count"] == len(document["events"])
    return [(event["event_type"], event["run_id"]) for event in document["events"]]


def test_the_newest_comes_first(home: Path, capsys: Capture) -> None:
    recorded(home)
    assert events(home, capsys) == [
        ("run_ended", "run_1"),
        ("run_started", "run_2"),
        ("run_started", "run_1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--run-id", "run_1"), 2),
        (("--session-key", "agent:run_2:main"), 1),
        (("--agent-id", "of_run_1"), 2),
        (("--event-type", "run_ended"), 1),
        (("--event-type", "run_ended", "--event-type", "run_started"), 3),
        (("--run-id", "run_1", "--event-type", "run_started"), 1),
        (("--limit", "2"), 2),
        (("--run-id", "run_9"), 0),
    ],
)
def test_filters_combine(
    home: Path, capsys: Capture, arguments: tuple[str, ...], count: int
) -> None:
    recorded(home)
    assert len(events(home, capsys, *arguments)) == count


def test_what_is_too_old_is_left_out(home: Path, capsys: Capture) -> None:
    recorded(home, age_ms=2 * HOUR)
    assert len(events(home, capsys, "--since", "1h")) == 0
    assert len(events(home, capsys, "--since", "3h")) == 3
    assert len(events(home, capsys, "--since", "2020-01-01")) == 3


def test_text_has_one_line_for_each_record(home: Path, capsys: Capture) -> None:
    recorded(home)
    assert run_command(app, "--limit", "1", home=home) == 0
    (line,) = capsys.readouterr().out.splitlines()
    time, kind, run, payload = line.split(maxsplit=3)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert (kind, run, payload) == ("run_ended", "run_1", '{"number":2,"text":"two\\nlines"}')


def test_nothing_found_is_said(home: Path, capsys: Capture) -> None:
    assert run_command(app, home=home) == 0
    assert capsys.readouterr().out == "No records fit.\n"
    (home / ".lemon" / "config.toml").write_text("[introspection]\nenabled = false\n")
    assert run_command(app, home=home) == 0
    assert capsys.readouterr().out == "No records fit; recording is switched off.\n"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("30s", NOW - 30_000),
        ("30m", NOW - 30 * 60_000),
        ("1h", NOW - HOUR),
        ("2D", NOW - 48 * HOUR),
        ("1w", NOW - 7 * 24 * HOUR),
        ("99999999w", 0),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
    ],
)
def test_times(text: str, time: int) -> None:
    assert since_time(text, NOW) == time


@pytest.mark.parametrize("text", ["", "h", "1", "1y", "-1h", "yesterday", "2026-13-01", "１h"])
def test_text_that_is_no_time_is_told(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time"):
        since_time(text, NOW)
