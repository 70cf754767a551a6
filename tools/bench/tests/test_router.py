"""The benchmark of the router, with hardly any messages."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import router
from tools.bench.stats import Load, Timing


def test_submissions_and_first_deltas_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert router.main(["--runs", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    values = {row["name"]: row["value"] for row in document["rows"]}
    assert all(math.isfinite(value) for value in values.values())
    for at_once in router.AT_ONCE:
        for store in ("SQLite", "PostgreSQL"):
            assert values[f"accepted submissions, {store}, {at_once} at once"] > 0
        assert values[f"submit to first delta, gateway alone, {at_once} at once"] > 0
    assert sum(row["aim"] is not None for row in document["rows"]) == 9


def test_shares_and_times_are_of_what_was_measured_beside_it() -> None:
    measured = router.Measured()
    for at_once in router.AT_ONCE:
        for store in router.STORES:
            measured.submissions[store, at_once] = [_load(at_once, wall_s=2)]
            measured.rows[store, at_once] = [_load(at_once, wall_s=1)]
        measured.first_ms["router", at_once] = [9.0, 4.0, 9.0]
        measured.first_ms["gateway", at_once] = [2.0, 2.0, 3.0]
    values = {row.name: row.value for row in router.rows(measured)}
    assert values["submissions, share of bare rows, PostgreSQL, 8 at once"] == 0.5
    assert values["accepted submissions, SQLite, 50 at once"] == 5
    assert values["submit to first delta, times the gateway's, 1 at once"] == 3


def _load(at_once: int, *, wall_s: float) -> Load:
    return Load(at_once, (Timing(0.001, 0.001),) * 10, wall_s)
