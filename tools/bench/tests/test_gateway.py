"""The benchmark of the gateway, with hardly any runs."""

from __future__ import annotations

import json
import math

import pytest

from tools.bench import gateway


def test_the_gateway_is_measured_beside_bare_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.main(["--runs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    values = {row["name"]: row["value"] for row in document["rows"]}
    assert all(math.isfinite(value) for value in values.values())
    for at_once in gateway.AT_ONCE:
        for form in gateway.FORMS:
            assert values[f"share of bare gRPC, {form}, {at_once} at once"] > 0
    assert values["slots alone, per run"] > 0
    # run_started, engine_started, twenty deltas, engine_completed, run_completed
    assert document["facts"]["events_per_run"] == 24
