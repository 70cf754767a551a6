"""The benchmark of the agent loop, with hardly any runs."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import agent_loop


def test_the_loop_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert agent_loop.main(["--runs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(math.isfinite(row["value"]) for row in document["rows"])
    assert {row["name"] for row in document["rows"]} >= {
        "turns per second",
        "overhead per turn",
        "overhead per tool call",
    }


def test_overheads_are_what_is_left_without_the_model() -> None:
    taken_ms = {
        "stream": 1.0,
        "turn": 1.5,
        "agent": 1.75,
        "call": 4.0,
        "calls": 4.0 + 9 * 0.25,
        "call's streams": 2.0,
        "calls' streams": 2.0 + 9 * 0.125,
    }
    rows = agent_loop.rows(taken_ms)
    values = {row.name: row.value for row in rows}
    assert values["overhead per turn"] == 0.5
    assert values["overhead per turn, agent with a subscription"] == 0.75
    assert values["a tool call that does nothing"] == 0.25
    assert values["overhead per tool call"] == 0.125
