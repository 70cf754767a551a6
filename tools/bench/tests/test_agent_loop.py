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
    rows = agent_loop.rows(
        stream_ms=1.0,
        turn_ms=1.5,
        agent_ms=1.75,
        one_call_ms=4.0,
        many_calls_ms=4.0 + 9 * 0.25,
        stream_per_call_ms=0.125,
    )
    values = {row.name: row.value for row in rows}
    assert values["overhead per turn"] == 0.5
    assert values["overhead per turn, agent with a subscription"] == 0.75
    assert values["a tool call that does nothing"] == 0.25
    assert values["overhead per tool call"] == 0.125
