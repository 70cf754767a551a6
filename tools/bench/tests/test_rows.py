"""The table out of made-up measurements."""

from __future__ import annotations

from tools.bench.measure import AT_ONCE, Counts, Measured
from tools.bench.processes import Ended
from tools.bench.rows import rows
from tools.bench.stats import Load, Timing


def load(
    at_once: int,
    total_ms: float,
    *,
    first_ms: float = 1.0,
    runs_per_second: float = 100.0,
    cpu_ms: float = 0.0,
) -> Load:
    timings = (Timing(first_ms / 1000, total_ms / 1000),) * 10
    return Load(at_once, timings, wall_s=10 / runs_per_second, cpu_s=cpu_ms / 100)


def measured() -> Measured:
    return Measured(
        lemon={n: load(n, 6.0 * n, first_ms=5.0, cpu_ms=4.0) for n in AT_ONCE},
        model={n: load(n, 2.0 * n, first_ms=2.0) for n in AT_ONCE},
        paced_lemon={n: load(n, 800.0, first_ms=50.0) for n in AT_ONCE},
        paced_model={n: load(n, 800.0, first_ms=40.0) for n in AT_ONCE},
        bare={n: load(n, 3.0 * n, runs_per_second=400.0, cpu_ms=1.5) for n in AT_ONCE},
        bare_batched={n: load(n, 1.0 * n, runs_per_second=2000.0) for n in AT_ONCE},
        tool=load(1, 15.0),
        events_per_run=30,
        starts_s=[0.5, 0.6, 0.7],
        one_shots=[Ended(0.702, 70.0)],
        versions=[Ended(0.06, 10.0), Ended(0.07, 10.0)],
        idle_mib=74.0,
        mib_before_8=80.0,
        mib_after_8=80.1,
    )


def test_every_aim_of_the_design_has_its_row() -> None:
    with_aims = {row.name: (round(row.value, 3), str(row.aim), row.met) for row in rows(measured())}
    expected = {
        "runs per second at 8: share of bare gRPC, one message per event": (0.25, "≥ 0.3", False),
        "runs per second at 50: share of bare gRPC, one message per event": (0.25, "≥ 0.3", False),
        "server CPU per run at 8": (4.0, "≤ 3.3", False),
        "server CPU per run at 50": (4.0, "≤ 3.3", False),
        "submit to answer at 1, p50 beyond the model": (4.0, "≤ 5", True),
        "first token at 1 beyond the model, p50 (model takes its time)": (10.0, "≤ 4", False),
        "first token at 8 beyond the model, p50 (model takes its time)": (10.0, "≤ 8", False),
        "first token at 50 beyond the model, p50 (model takes its time)": (10.0, "≤ 15", True),
        "p99 / p50 at 50": (1.0, "≤ 3", True),
        "one-shot lemon run, beyond the model": (0.7, "≤ 0.6", False),
        "one-shot lemon run, peak memory": (70.0, "≤ 80", True),
        "server start to ready": (0.6, "≤ 0.7", True),
        "idle memory": (74.0, "≤ 75", True),
        "growth per 1,000 runs": (10.0, "≤ 5", False),
        "a shell tool round (with its model call)": (9.0, "≤ 8", False),
        "lemon --version": (60.0, "≤ 80", True),
    }
    assert {name: with_aims[name] for name in expected} == expected
    assert {row.name for row in rows(measured()) if row.aim} == set(expected)


def test_processor_time_is_told_as_a_multiple_too() -> None:
    values = {row.name: row.value for row in rows(measured())}
    assert round(values["server CPU per run at 8: times bare gRPC's"], 3) == round(4.0 / 1.5, 3)
    unclear = measured()
    unclear.bare[8] = load(8, 24.0)  # fewer runs than one tick of the clock
    assert "server CPU per run at 8: times bare gRPC's" not in {row.name for row in rows(unclear)}


def test_few_counts_are_few() -> None:
    few = Counts.few(2)
    assert {getattr(few, name) for name in Counts.__dataclass_fields__} == {2}
    assert Counts.few(10_000) == Counts()
