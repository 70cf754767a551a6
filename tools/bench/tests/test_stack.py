"""The benchmarks themselves, with hardly any runs: every row has a value."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import stack


def test_the_stack_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert stack.main(["--runs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(math.isfinite(row["value"]) for row in document["rows"])
    values = {row["name"]: row["value"] for row in document["rows"]}
    assert values["runs per second at 50"] > 0
    assert values["lemon --version"] > 0
    assert document["facts"]["events_per_run"] > document["facts"]["tokens_per_answer"]
