"""The benchmark of the start, with one run of each command."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import startup


def test_the_packaged_commands_are_measured_beside_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert startup.main(["--runs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    assert [row["name"] for row in rows if row["aim"] is not None] == [
        "lemon --version",
        "lemon --help",
        "lemon run --help",
        "lemon config --help",
    ]
    assert rows[0]["name"] == "python3 -c pass"
