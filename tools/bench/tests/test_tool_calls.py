"""The benchmark of the tools, over a small tree."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import tool_calls


def test_tools_are_measured_beside_the_bare_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool_calls.main(["--turns", "1", "--files", "1000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(math.isfinite(row["value"]) for row in rows)
    assert [row["name"] for row in rows if row["aim"] is not None] == [
        "grep, times bare rg",
        "find, times bare rg",
        "read, beyond opening the file",
        "bash, beyond a bare subprocess",
    ]
