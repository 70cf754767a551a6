"""`bazel run //tools/bench:voice`: whether a call keeps its rhythm while runs stream beside it.

One process takes a call and executes runs, in one event loop. The phone and the services of the
call are in this process, the clients of the runs in a third. The call is made three times: alone,
beside eight runs that stream as a model writes, and beside eight that say everything at once, so
that the server's processor is never idle.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from lemon_core.testing import temp_home
from lemon_gateway.voice.audio import FRAME_MS
from lemon_gateway.voice.line import LEAD_MS
from tools.bench.gateway_parts import READY
from tools.bench.processes import BenchError, running
from tools.bench.stats import percentile
from tools.bench.table import Row, at_most, machine_facts, show
from tools.bench.voice_parts import RUNS, TOKEN_MS, Pace
from tools.bench.voice_phone import Call, Services, call, serving

SECONDS: Final = 20.0
# The sound is sent a second ahead: a call that is not longer shows no rhythm.
SHORTEST: Final = 2.0
CASES: Final[dict[str, Pace | None]] = {
    "alone": None,
    f"{RUNS} runs stream": "paced",
    f"{RUNS} runs, busy": "busy",
}
MODULE: Final = "tools.bench.voice_parts"


@dataclass(frozen=True, slots=True)
class Measured:
    """One call and what the server spent on everything meanwhile."""

    call: Call
    cpu_share: float


async def measure(seconds: float) -> dict[str, Measured]:
    """A call of that length for each of the cases."""
    found: dict[str, Measured] = {}
    async with AsyncExitStack() as stack:
        home = stack.enter_context(temp_home()).home
        services = Services(seconds)
        address = await stack.enter_async_context(serving(services))
        command = [sys.executable, "-m", MODULE, "serve", str(home), address]
        server = await stack.enter_async_context(running(command, ready=READY))
        base_url = server.line.split()[1]
        for number, (name, pace) in enumerate(CASES.items()):
            async with _beside(home, pace):
                before, began = server.cpu_seconds(), time.perf_counter()
                made = await call(base_url, services, number)
                spent, took = server.cpu_seconds() - before, time.perf_counter() - began
                found[name] = Measured(made, spent / took)
    return found


@asynccontextmanager
async def _beside(home: Path, pace: Pace | None) -> AsyncIterator[None]:
    if pace is None:
        yield
        return
    command = [sys.executable, "-m", MODULE, "load", str(home), pace]
    async with running(command, ready=READY):
        yield


def rows(measured: dict[str, Measured]) -> list[Row]:
    """The table, case by case."""
    found: list[Row] = []
    for name, one in measured.items():
        # Where the processor is never idle, a frame waits for it like everything else.
        aim = None if CASES[name] == "busy" else at_most(20)
        margins, delays = one.call.margins_ms, one.call.delays_ms
        # The first ones go out at once, each with more lead than the one before it.
        paced = margins[LEAD_MS // FRAME_MS + 1 :]
        late = [margin for margin in margins if margin < 0]
        behind = [margin for margin in paced if margin < LEAD_MS - FRAME_MS]
        found += [
            Row(f"frames heard late, {name}", 1000 * len(late) / len(margins), "‰", at_most(1)),
            Row(f"frames over 20 ms behind, {name}", 1000 * len(behind) / len(paced), "‰"),
            Row(f"lead that is left of {LEAD_MS} ms at worst, {name}", min(paced), "ms"),
            Row(f"caller's frame to transcription, {name}, p50", percentile(delays, 50), "ms"),
            Row(
                f"caller's frame to transcription, {name}, p99",
                percentile(delays, 99),
                "ms",
                aim,
            ),
            Row(f"processor of the server, {name}", 100 * one.cpu_share, "%"),
        ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured, whatever the numbers are."""
    parser = argparse.ArgumentParser(prog="voice", description="Whether calls keep their rhythm.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each call is")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, max(SHORTEST, arguments.seconds))
    except BenchError as exc:
        print(f"voice: {exc}", file=sys.stderr)
        return 1
    facts = {
        "seconds_per_call": arguments.seconds,
        "frame_ms": FRAME_MS,
        "lead_ms": LEAD_MS,
        "ms_per_token": TOKEN_MS,
        **machine_facts(began),
    }
    print(show(rows(measured), facts, as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
