"""The benchmark of lemon_ai's stream, with hardly any answers."""

from __future__ import annotations

import json
import math

import pytest

from lemon_ai.testing.wires import WIRES
from tools.bench import ai_stream
from tools.bench.ai_stream import APIS, AT_ONCE, Key, Measured, Reader
from tools.bench.stats import Load, Timing


def test_every_stream_is_measured_beside_a_bare_reader(capsys: pytest.CaptureFixture[str]) -> None:
    assert ai_stream.main(["--runs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(math.isfinite(row["value"]) for row in rows)
    with_aims = [row["name"] for row in rows if row["aim"] is not None]
    # Tokens and first tokens at each number of streams, and the processor.
    assert len(with_aims) == len(APIS) * (2 * len(AT_ONCE) + 1)
    plain = [row for row in rows if row["aim"] is None]
    assert all(row["value"] > 0 for row in plain)


def test_every_form_of_stream_is_there() -> None:
    forms = {wire.render for wire in WIRES.values()}
    assert {WIRES[api].render for api in APIS} == forms
    assert len(APIS) == len(forms)


def load(first_ms: float, per_second: float, cpu_ms: float) -> Load:
    timings = (Timing(first_ms / 1000, 1.0),) * 10
    return Load(1, timings, wall_s=10 / per_second, cpu_s=cpu_ms / 100)


def test_ratios_are_of_what_was_measured_beside_it() -> None:
    def loads(reader: Reader) -> list[Load]:
        return [load(5.0, 50.0, 3.0) if reader == "lemon_ai" else load(4.5, 200.0, 1.5)]

    readers: tuple[Reader, ...] = ("lemon_ai", "bare")
    measured: Measured = {
        Key(api, at_once, reader, paced): loads(reader)
        for api in APIS
        for at_once in AT_ONCE
        for reader in readers
        for paced in (False, True)
    }
    values = {row.name: round(row.value, 6) for row in ai_stream.rows(measured)}
    assert values["share of bare aiohttp's tokens, openai_responses, 8 at once"] == 0.25
    assert values["processor per token: times bare aiohttp's, anthropic_messages"] == 2.0
    assert values["processor per token, anthropic_messages"] == 15.0
    assert values["bare aiohttp's, anthropic_messages"] == 7.5
    assert values["first token beyond bare aiohttp's, google_generative_ai, 1 at once"] == 0.5
    assert values["tokens, openai_completions, 1 at once"] == 50.0 * ai_stream.TOKENS
    assert values["bare aiohttp, openai_completions, 1 at once"] == 200.0 * ai_stream.TOKENS
