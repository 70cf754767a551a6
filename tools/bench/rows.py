"""The table of `stack`: the measured numbers beside their aims."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.measure import AT_ONCE, Measured
from tools.bench.stats import Load, growth_per, percentile
from tools.bench.table import Aim, Row, at_least, at_most

CPU_AIM = at_most(3.3)
RATIO_AIM = at_least(0.3)
FIRST_TOKEN_AIMS = {1: at_most(4), 8: at_most(8), 50: at_most(15)}


def rows(measured: Measured) -> list[Row]:
    """Every row, those without an aim after the ones they explain."""
    return [
        *_throughput(measured),
        *_latency(measured),
        *_programs(measured),
    ]


def _throughput(measured: Measured) -> Iterator[Row]:
    for at_once in AT_ONCE:
        lemon, bare = measured.lemon[at_once], measured.bare[at_once]
        # The aims are for 8 and 50: alone, a run waits for the model most of the time.
        ratio_aim, cpu_aim = (None, None) if at_once == 1 else (RATIO_AIM, CPU_AIM)
        yield Row(
            f"runs per second at {at_once}: share of bare gRPC, one message per event",
            lemon.per_second / bare.per_second,
            "",
            ratio_aim,
        )
        yield Row(f"runs per second at {at_once}", lemon.per_second, "1/s")
        yield Row(f"bare gRPC at {at_once}, one message per event", bare.per_second, "1/s")
        batched = measured.bare_batched[at_once]
        yield Row(f"bare gRPC at {at_once}, all events in one message", batched.per_second, "1/s")
        yield Row(f"server CPU per run at {at_once}", lemon.cpu_ms_per_run, "ms", cpu_aim)
        yield Row(f"bare gRPC's server CPU per run at {at_once}", bare.cpu_ms_per_run, "ms")
        if bare.cpu_s:
            share = lemon.cpu_ms_per_run / bare.cpu_ms_per_run
            yield Row(f"server CPU per run at {at_once}: times bare gRPC's", share, "")


def _latency(measured: Measured) -> Iterator[Row]:
    alone, model = measured.lemon[1].total_ms, measured.model[1].total_ms
    name = "submit to answer at 1"
    yield Row(f"{name}, p50 beyond the model", alone.p50 - model.p50, "ms", at_most(5))
    yield Row(f"{name}, p50", alone.p50, "ms")
    yield Row(f"{name}, p99", alone.p99, "ms")
    yield Row("the model alone at 1, p50", model.p50, "ms")
    for at_once in AT_ONCE:
        yield _first_token(
            f"first token at {at_once} beyond the model, p50 (model takes its time)",
            measured.paced_lemon[at_once],
            measured.paced_model[at_once],
            FIRST_TOKEN_AIMS[at_once],
        )
    for at_once in AT_ONCE:
        yield _first_token(
            f"first token at {at_once} beyond the model, p50 (no delay: the queue for the CPU)",
            measured.lemon[at_once],
            measured.model[at_once],
        )
    busy = measured.lemon[50].total_ms
    yield Row("p99 / p50 at 50", busy.p99 / busy.p50, "", at_most(3))
    yield Row("submit to answer at 50, p50", busy.p50, "ms")


def _first_token(name: str, lemon: Load, model: Load, aim: Aim | None = None) -> Row:
    return Row(name, lemon.first_token_ms.p50 - model.first_token_ms.p50, "ms", aim)


def _programs(measured: Measured) -> Iterator[Row]:
    model_s = measured.model[1].total_ms.p50 / 1000
    wall_s = percentile([shot.wall_s for shot in measured.one_shots], 50)
    peak_mib = percentile([shot.peak_mib for shot in measured.one_shots], 50)
    yield Row("one-shot lemon run, beyond the model", wall_s - model_s, "s", at_most(0.6))
    yield Row("one-shot lemon run, peak memory", peak_mib, "MiB", at_most(80))
    ready_s = percentile(measured.starts_s, 50)
    yield Row("server start to ready", ready_s, "s", at_most(0.7))
    yield Row("idle memory", measured.idle_mib, "MiB", at_most(75))
    growth = growth_per(1_000, measured.mib_before_8, measured.mib_after_8, measured.lemon[8].count)
    yield Row("growth per 1,000 runs", growth, "MiB", at_most(5))
    if measured.tool is not None:
        tool_ms = measured.tool.total_ms.p50 - measured.lemon[1].total_ms.p50
        yield Row("a shell tool round (with its model call)", tool_ms, "ms", at_most(8))
    version_ms = percentile([run.wall_s for run in measured.versions], 50) * 1000
    yield Row("lemon --version", version_ms, "ms", at_most(80))
