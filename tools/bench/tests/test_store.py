"""The benchmark of the store, with hardly any rows."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import store


def test_commits_are_measured_beside_sqlite3(capsys: pytest.CaptureFixture[str]) -> None:
    assert store.main(["--rows", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["rows"]
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    assert sum(row["aim"] is not None for row in rows) == 5
    assert {"sqlite", "cpus", "python", "took_s"} <= set(document["facts"])


def test_shares_are_of_what_was_measured_beside_it() -> None:
    per_second = {
        (kind, at_once): [value * at_once, value * at_once]
        for kind, value in (("store", 100.0), ("single", 50.0), ("grouped", 400.0))
        for at_once in store.AT_ONCE
    }
    values = {row.name: row.value for row in store.rows(per_second)}
    assert values["share of sqlite3, a commit each, 8 at once"] == 2
    assert values["share of sqlite3, 50 rows a commit"] == 0.25
    assert values["rows through the store, 50 at once"] == 5_000
