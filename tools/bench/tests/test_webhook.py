"""The benchmark of the webhook, with hardly any deliveries."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import webhook
from tools.bench.stats import Load, Timing


def test_every_way_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert webhook.main(["--runs", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    values = {row["name"]: row["value"] for row in document["rows"]}
    assert all(math.isfinite(value) for value in values.values())
    for at_once in webhook.AT_ONCE:
        for way in webhook.WAYS:
            assert values[f"webhooks {way}, {at_once} at once"] > 0
    assert sum(row["aim"] is not None for row in document["rows"]) == len(webhook.AT_ONCE)


def test_shares_are_of_what_was_measured_beside_it() -> None:
    measured = webhook.Measured()
    for at_once in webhook.AT_ONCE:
        for way, wall_s in (("with a key", 2), ("without a key", 1), ("repeated", 4)):
            measured.loads[way, at_once] = [_load(at_once, wall_s)]  # type: ignore[index]
    values = {row.name: row.value for row in webhook.rows(measured)}
    assert values["with a key, share of without, 8 at once"] == 0.5
    assert values["webhooks repeated, 50 at once"] == 2.5


def _load(at_once: int, wall_s: float) -> Load:
    return Load(at_once, (Timing(0.001, 0.001),) * 10, wall_s)
