"""`lemon sessions`, `runs` and `approvals` without a server (specification lemon_cli 2.3).

What they do with one is shown in //tools/e2e.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import anyio
import pytest

from lemon_cli import cli
from lemon_cli.main import run
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_core.testing import temp_home

PROFILE = Profile(name="test", commands={"lemon_cli": cli.COMMANDS})
KEY = "agent:default:main:sub:w"
ANSWER = "The sky\x1b[31m is blue."


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as paths:
        yield paths


@pytest.fixture
def used(paths: PathSettings) -> PathSettings:
    """A home whose store has one session with an answered and a lost run."""

    async def fill() -> None:
        clock = SystemClock()
        settings = StoreSettings("sqlite", paths.state_dir / "store")
        paths.state_dir.mkdir(mode=0o700, exist_ok=True)
        async with open_store(settings, clock) as store:
            runs = RunStore(store, clock)
            await runs.begin("run_1", b"d", session_key=KEY)
            summary = {
                "session_key": KEY,
                "agent_id": "default",
                "origin": "unknown",
                "prompt": "What colour\nis the sky?",
                "model": "m",
                "duration_ms": 1_500,
                "completed": {"ok": True, "answer": ANSWER},
            }
            await runs.finalize("run_1", summary)
            await runs.begin("run_2", b"d", session_key=KEY)

    anyio.run(fill)
    return paths


def lemon(paths: PathSettings, *argv: str) -> int:
    environ = {"HOME": str(paths.home), "PATH": os.environ["PATH"]}
    return run(argv, profile=PROFILE, environ=environ, cwd=paths.home)


@pytest.mark.behaviour("lemon_cli.27")
def test_sessions_are_read_from_the_store(
    used: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(used, "sessions", "list") == 0
    said = capsys.readouterr()
    assert said.err == "lemon: Lemon is not running: this is what the store holds\n"
    head, line = said.out.splitlines()
    assert head.split() == ["SESSION", "AGENT", "STATE", "RUNS", "LAST", "USED"]
    assert line.split()[:4] == ["w", "default", "idle", "1"]
    assert lemon(used, "sessions", "list", "--json", "--agent", "other") == 0
    assert json.loads(capsys.readouterr().out) == {"sessions": []}


@pytest.mark.behaviour("lemon_cli.27")
def test_a_session_is_shown_with_its_runs(
    used: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(used, "sessions", "show", "w") == 0
    out = capsys.readouterr().out
    assert KEY in out
    assert "What colour is the sky?" in out
    assert "blue" not in out
    assert lemon(used, "sessions", "show", KEY, "--full") == 0
    assert "The sky[31m is blue." in capsys.readouterr().out
    assert lemon(used, "sessions", "show", "w", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["session_key"], shown["run_count"]) == (KEY, 1)
    assert shown["runs"][0]["completion"]["answer"] == ANSWER


@pytest.mark.behaviour("lemon_cli.27")
def test_runs_are_read_from_the_store(
    used: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(used, "runs", "list") == 0
    assert "run_1" in capsys.readouterr().out
    assert lemon(used, "runs", "show", "run_1") == 0
    shown = capsys.readouterr().out
    assert "took     1.5 s" in shown
    assert shown.endswith("The sky[31m is blue.\n")
    assert lemon(used, "runs", "show", "run_2", "--json") == 0
    lost = json.loads(capsys.readouterr().out)
    assert (lost["state"], lost["completion"]["error"]) == ("failed", "run_lost")
    assert lemon(used, "runs", "list", "--active", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_what_is_unknown_is_one_line(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(paths, "runs", "show", "run_9") == 1
    assert "no run run_9 is known: lemon runs list shows them" in capsys.readouterr().err
    assert lemon(paths, "sessions", "show", "w") == 1
    assert "no session w is known" in capsys.readouterr().err
    assert lemon(paths, "sessions", "list") == 0
    assert capsys.readouterr().err.endswith("lemon: no sessions\n")


@pytest.mark.behaviour("lemon_cli.27")
@pytest.mark.parametrize(
    "argv",
    [
        ("sessions", "reset", "w", "--yes"),
        ("sessions", "set", "w", "--model", "m"),
        ("runs", "abort", "run_1"),
        ("run", "--detach", "--session", "w", "hi"),
        ("runs", "steer", "run_1", "more"),
        ("approvals", "list"),
        ("approvals", "allow", "a"),
        ("approvals", "deny", "a"),
    ],
)
def test_what_changes_something_needs_the_server(
    used: PathSettings, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    assert lemon(used, *argv) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "lemon: Lemon is not running: start it with lemon start\n"


@pytest.mark.parametrize(
    "argv",
    [
        ("sessions", "set", "w"),
        ("sessions", "set", "w", "--thinking", "hard"),
        ("sessions", "show", "not:a:key"),
        ("runs", "list", "--status", "odd"),
        ("runs", "steer", "run_1", " "),
        ("runs", "steer", "run_1", "x", "--mode", "odd"),
        ("approvals", "allow", "a", "--scope", "ever"),
        ("approvals", "forget"),
        ("run", "hi", "--queue-mode", "odd"),
        ("run", "hi", "--approve", "odd"),
    ],
)
def test_wrong_arguments_end_2(
    paths: PathSettings, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    assert lemon(paths, *argv) == 2
    assert capsys.readouterr().err
    assert not paths.state_dir.exists()


@pytest.mark.parametrize("word", ["sessions", "runs", "approvals"])
def test_help_touches_nothing(
    paths: PathSettings, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert lemon(paths, word, "--help") == 0
    assert "Usage" in capsys.readouterr().out
    assert not paths.state_dir.exists()
