"""`lemon feedback` (specification lemon_router 7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner, Result

from lemon_core.clock import SystemClock
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile, load_target
from lemon_core.system_events import RoutingFeedback
from lemon_core.testing import FakeClock
from lemon_router.cli import COMMANDS
from lemon_router.cli.feedback import app
from lemon_router.feedback import FeedbackLog

MINE, OTHERS, OLD = "code|-|/src/app|one|m1", "code|-|/src/app|two|m2", "chat|-|-|one|m1"


class Home:
    """A user with a file of outcomes."""

    def __init__(self, folder: Path) -> None:
        self.paths = PathSettings(folder)
        self.file = self.paths.store_dir / "routing_feedback.sqlite3"

    def lemon(self, *words: str) -> Result:
        context = CommandContext(Profile("test"), {}, self.paths, self.paths.home)
        return CliRunner().invoke(app, words, obj=context, standalone_mode=False)

    def document(self, *words: str) -> dict[str, object]:
        result = self.lemon(*words, "--json")
        assert result.return_value == 0
        found: dict[str, object] = json.loads(result.stdout)
        return found


@pytest.fixture
def empty(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def home(empty: Home) -> Home:
    """Ten outcomes of today, and five of long ago."""

    async def fill() -> None:
        for clock, outcomes in (
            (FakeClock(1_000), [(OLD, "success")] * 5),
            (SystemClock(), [(MINE, "success")] * 6 + [(MINE, "failure"), (OTHERS, "failure")]),
        ):
            kept = FeedbackLog(empty.file, clock)
            await kept.record(
                [
                    RoutingFeedback(fingerprint_key=k, outcome=o, duration_ms=1_500)
                    for k, o in outcomes
                ]
            )
            await kept.close()

    anyio.run(fill)
    return empty


def keys(document: dict[str, object]) -> Sequence[str]:
    rows = document["keys"]
    assert isinstance(rows, list)
    return [row["key"] for row in rows]


def test_the_command_is_declared() -> None:
    (spec,) = COMMANDS
    assert (spec.name, load_target(spec.target)) == ("feedback", app)


@pytest.mark.behaviour("lemon_router.38")
def test_without_a_file_there_is_nothing_and_none_is_made(empty: Home) -> None:
    assert empty.document("stats") == {
        "path": str(empty.file),
        "run_count": 0,
        "key_count": 0,
        "oldest_at_ms": None,
        "newest_at_ms": None,
    }
    assert empty.lemon("stats").stdout == "Nothing is recorded yet.\n"
    assert empty.document("list") == {"keys": []}
    assert empty.lemon("list").stdout == "Nothing is recorded of that.\n"
    refused = empty.lemon("inspect", MINE)
    assert (refused.return_value, refused.stdout) == (1, "")
    assert "lemon feedback list" in refused.stderr
    assert not empty.file.exists()


def test_stats_says_how_much_there_is(home: Home) -> None:
    found = home.document("stats")
    assert (found["run_count"], found["key_count"], found["oldest_at_ms"]) == (13, 3, 1_000)
    assert home.lemon("stats").stdout.startswith("13 outcomes of 3 keys, 1970-01-01 to ")


@pytest.mark.behaviour("lemon_router.38")
def test_list_shows_each_key_and_how_sure_it_is(home: Home) -> None:
    assert keys(home.document("list")) == [MINE, OLD, OTHERS]
    assert keys(home.document("list", "--family", "CODE")) == [MINE, OTHERS]
    assert keys(home.document("list", "--workspace", "/src/APP")) == [MINE, OTHERS]
    assert keys(home.document("list", "--since", "1")) == [MINE, OTHERS]
    lines = home.lemon("list").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["KEY", "RUNS", "SUCCESS", "MEAN", "TIME", "CONFIDENCE"],
        [MINE, "7", "86%", "1.5", "s", "high"],
        [OLD, "5", "100%", "1.5", "s", "high"],
        [OTHERS, "1", "-", "1.5", "s", "insufficient"],
    ]


@pytest.mark.behaviour("lemon_router.38")
def test_inspect_shows_a_key_or_the_models_of_a_context(home: Home) -> None:
    assert home.document("inspect", MINE) == {
        "key": MINE,
        "total": 7,
        "outcomes": {"failure": 1, "success": 6},
        "success_rate": 0.8571,
        "mean_duration_ms": 1_500,
        "confidence": "high",
    }
    assert "runs: 7 (1 failure, 6 success)" in home.lemon("inspect", MINE).stdout
    context = home.document("inspect", "code|-|/src/app")
    assert context["best_model"] == "m1"
    assert home.lemon("inspect", "code|-|/src/app").stdout.endswith("best: m1\n")
    assert home.lemon("inspect", "chat|-|nowhere").return_value == 1
