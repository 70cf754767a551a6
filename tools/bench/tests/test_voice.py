"""The benchmark of calls, with very short ones."""

from __future__ import annotations

import json
import math

import pytest

from lemon_gateway.voice.line import LEAD_MS
from tools.bench import voice
from tools.bench.voice_phone import Call


def test_calls_are_measured_alone_and_beside_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert voice.main(["--seconds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    values = {row["name"]: row["value"] for row in document["rows"]}
    assert all(math.isfinite(value) for value in values.values())
    for name in voice.CASES:
        assert values[f"caller's frame to transcription, {name}, p50"] > 0
        assert values[f"processor of the server, {name}"] > 0
    assert document["facts"]["lead_ms"] == LEAD_MS


def test_a_frame_that_comes_after_its_moment_is_a_gap_and_moves_the_rest() -> None:
    seen = Call(spoken_s=[1.0, 1.0, 1.01, 1.10, 1.10])
    assert seen.margins_ms == pytest.approx([0, 20, 30, -40, 20])


def test_frames_of_the_phone_are_followed_to_the_transcription() -> None:
    seen = Call(sent_s=[1.0, 1.02, 1.04], heard_s=[1.001, 1.022])
    assert seen.delays_ms == pytest.approx([1, 2])
