"""The benchmark of the bus, with hardly any deliveries."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import bus


def test_fan_out_is_measured_beside_deques(capsys: pytest.CaptureFixture[str]) -> None:
    assert bus.main(["--deliveries", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    assert [row["name"] for row in rows if row["aim"] is not None] == [
        "share of bare deques, 1 subscriber",
        "share of bare deques, 10 subscribers",
        "share of bare deques, 100 subscribers",
    ]


def test_shares_are_of_what_was_measured_beside_it() -> None:
    per_second = {(kind, count): [100.0] for kind in ("bus", "bare") for count in bus.SUBSCRIBERS}
    per_second["bus", 10] = [25.0]
    values = {row.name: row.value for row in bus.rows(per_second)}
    assert values["share of bare deques, 10 subscribers"] == 0.25
