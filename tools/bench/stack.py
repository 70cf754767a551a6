"""`bazel run //tools/bench:stack`: what the whole stack costs, beside its aims.

A message goes through router, gateway and coding agent of the built server to a scripted model and
back. Bare grpc.aio streams the same events in the same run: ratios hold on any machine, the numbers
themselves only on this one.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence

import anyio

from tools.bench.measure import MAX_CONCURRENT_RUNS, Counts, Measured, Programs, measure
from tools.bench.model import PACE_MS, TOKENS
from tools.bench.processes import BenchError
from tools.bench.rows import rows
from tools.bench.table import machine_facts, show


def facts(measured: Measured, began: float) -> dict[str, object]:
    """What belongs to the numbers."""
    return {
        "machine": platform.machine(),
        "tokens_per_answer": TOKENS,
        "events_per_run": measured.events_per_run,
        "pace_ms_per_token": PACE_MS,
        "gateway.max_concurrent_runs": MAX_CONCURRENT_RUNS,
        **machine_facts(began),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured, whatever the numbers are."""
    parser = argparse.ArgumentParser(prog="stack", description="What the whole stack costs.")
    parser.add_argument("--runs", type=int, help="at most this many runs of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    counts = Counts() if arguments.runs is None else Counts.few(max(1, arguments.runs))
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, Programs.built(), counts, _say)
    except BenchError as exc:
        print(f"stack: {exc}", file=sys.stderr)
        return 1
    print(show(rows(measured), facts(measured, began), as_document=arguments.json))
    return 0


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
