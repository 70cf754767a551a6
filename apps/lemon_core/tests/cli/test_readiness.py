"""`lemon readiness` (specification lemon_cli 2.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lemon_core.cli.readiness import app
from lemon_core.testing import temp_home
from lemon_core.tests.cli.commands import run_command

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home() -> Iterator[Path]:
    with temp_home() as paths:
        yield paths.home


def test_a_missing_master_key_blocks(home: Path, capsys: Capture) -> None:
    assert run_command(app, home=home) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Lemon is not ready: something is missing (blocked)."
    assert lines[1].startswith("  missing    secrets.master_key: there is no master key")


def test_a_broken_configuration_fails(home: Path, capsys: Capture) -> None:
    (home / ".lemon").mkdir()
    (home / ".lemon" / "config.toml").write_text("[broken\n")
    assert run_command(app, "--json", "--limit", "1", home=home) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "failed"
    assert [item["check"] for item in document["unresolved"]] == ["config.global_valid"]
    assert document["unresolved_count"] > 1


def test_strict_wants_it_ready(home: Path, capsys: Capture) -> None:
    assert run_command(app, "--strict", home=home) == 1
    assert run_command(app, "--strict", "--project-dir", "x", "--json", home=home) == 1
