"""`bazel run //tools/bench:gateway`: what the gateway alone costs, beside bare grpc.aio.

The executor answers at once with 20 tokens. Runs go through the port in this process and over the
Unix socket of another one; bare grpc.aio streams the very events of a run, one message for each, in
the same minute. Slots, lock and journal are also measured alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import EngineRuntime
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.events import Event
from lemon_core.journal import Journal, JournalLimits
from lemon_core.resume import session_conversation
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.run_events import event_to_message
from lemon_core.testing import temp_home
from lemon_gateway.engine_lock import LockLease, LockTable
from lemon_gateway.slots import Grant, Slots
from tools.bench.bare_load import bare_load
from tools.bench.gateway_parts import READY, Commands, booted, one_run
from tools.bench.load import closed_loop
from tools.bench.processes import BenchError, Started, running
from tools.bench.stats import Load, Timing, growth_per
from tools.bench.table import Row, machine_facts, show

AT_ONCE: Final = (1, 8, 50)
RUNS: Final = {1: 500, 8: 2_000, 50: 2_000}
FORMS: Final = ("in process", "socket")


@dataclass(slots=True)
class Measured:
    """The loads by form and how many runs there were at once, and the parts alone."""

    loads: dict[tuple[str, int], Load] = field(default_factory=dict)
    events_per_run: int = 0
    growth_mib: float = 0.0
    parts_us: dict[str, float] = field(default_factory=dict)


async def measure(runs: int | None) -> Measured:
    """Measure everything once, with at most `runs` of everything."""
    measured = Measured()
    async with AsyncExitStack() as stack:
        home = stack.enter_context(temp_home()).home
        server_home = stack.enter_context(temp_home()).home
        local = await stack.enter_async_context(booted(home, serve=False))
        command = [sys.executable, "-m", "tools.bench.gateway_parts", str(server_home)]
        server = await stack.enter_async_context(running(command, ready=READY))
        remote = await stack.enter_async_context(_client(server_home))
        events = (await one_run(local, Commands(home)))[1]
        measured.events_per_run = len(events)
        recorded = [event_to_message("run_bench", _renamed(event)) for event in events]
        ports = {"in process": (local, home, None), "socket": (remote, server_home, server)}
        for at_once in AT_ONCE:
            count = RUNS[at_once] if runs is None else min(runs, RUNS[at_once])
            for form, (port, place, process) in ports.items():
                measured.loads[form, at_once] = await _load(port, place, process, at_once, count)
            measured.loads["bare", at_once] = await _bare(recorded, home, at_once, count)
        before, count = server.resident_mib(), RUNS[8] if runs is None else min(runs, RUNS[8])
        await _load(remote, server_home, server, 8, count)
        measured.growth_mib = growth_per(1_000, before, server.resident_mib(), count)
        measured.parts_us = parts(events, 5_000 if runs is None else min(runs, 5_000))
    return measured


def _client(home: Path) -> GrpcEngineRuntime:
    socket = UnixListen(home / ".lemon" / "run" / "gateway.sock")
    return GrpcEngineRuntime(socket, bus=Bus(), clock=SystemClock())


async def _load(
    port: EngineRuntime, home: Path, process: Started | None, at_once: int, count: int
) -> Load:
    commands = Commands(home)

    async def one() -> Timing:
        return (await one_run(port, commands))[0]

    await closed_loop(one, at_once=at_once, count=min(count, 100))
    cpu = time.process_time if process is None else process.cpu_seconds
    return await closed_loop(one, at_once=at_once, count=count, cpu_seconds=cpu)


async def _bare(events: Sequence[pb.RunEvent], scratch: Path, at_once: int, count: int) -> Load:
    async with bare_load(events, "Single", scratch) as bare:
        await closed_loop(bare.run, at_once=at_once, count=min(count, 100))
        return await closed_loop(
            bare.run, at_once=at_once, count=count, cpu_seconds=bare.server.cpu_seconds
        )


# --- the parts alone ---


def parts(events: Sequence[Event], count: int) -> dict[str, float]:
    """Microseconds that slots, lock and journal take for one run."""
    keys = [session_conversation(f"agent:a:main:sub:{number}") for number in range(count)]
    slots, table = Slots(1), LockTable()
    journal = Journal(epoch="bench", clock=SystemClock(), limits=JournalLimits(retention_ms=0))

    def slot(number: int) -> None:
        worker = slots.new_generation(keys[number])
        answer = slots.request(worker, number, 0)
        assert isinstance(answer, Grant)
        slots.release(answer.slot_id, 0)
        slots.retire(worker, 0)

    def lock(number: int) -> None:
        lease = table.take(("session", keys[number][1]), "run", 0)
        assert isinstance(lease, LockLease)
        table.release(lease, 0)

    def record(number: int) -> None:
        journal.open(name := f"run_{number}", "agent:a:main")
        for event in events:
            journal.append(name, event)

    each: dict[str, Callable[[int], None]] = {"slots": slot, "lock": lock, "journal": record}
    return {name: _microseconds(call, count) for name, call in each.items()}


def _microseconds(call: Callable[[int], None], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - began) * 1e6 / count


def _renamed(event: Event) -> Event:
    """The event as one of the run that the bare server streams."""
    payload = event.payload
    if hasattr(payload, "run_id") and hasattr(payload, "model_copy"):
        payload = payload.model_copy(update={"run_id": "run_bench"})
    return Event(event.type, event.ts_ms, payload, {**event.meta, "run_id": "run_bench"})


# --- the table ---


def rows(measured: Measured) -> list[Row]:
    """The table, shares of bare gRPC first."""
    shares: list[Row] = []
    plain: list[Row] = []
    for at_once in AT_ONCE:
        bare = measured.loads["bare", at_once]
        for form in FORMS:
            load = measured.loads[form, at_once]
            name = f"{form}, {at_once} at once"
            shares.append(Row(f"share of bare gRPC, {name}", load.per_second / bare.per_second, ""))
            first = load.first_token_ms
            plain.append(Row(f"submit to first delta, {name}, p50", first.p50, "ms"))
            plain.append(Row(f"submit to first delta, {name}, p99", first.p99, "ms"))
            events = load.per_second * measured.events_per_run
            plain.append(Row(f"events, {name}", events, "1/s"))
            plain.append(Row(f"processor per run, {name}", load.cpu_ms_per_run, "ms"))
        first, events = bare.first_token_ms, bare.per_second * measured.events_per_run
        plain.append(Row(f"bare first delta, {at_once} at once, p50", first.p50, "ms"))
        plain.append(Row(f"bare events, {at_once} at once", events, "1/s"))
    growth = Row("server memory per 1,000 runs", measured.growth_mib, "MiB")
    alone = [Row(f"{name} alone, per run", us, "µs") for name, us in measured.parts_us.items()]
    return [*shares, *plain, growth, *alone]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="gateway", description="What the gateway alone costs.")
    parser.add_argument("--runs", type=int, help="at most this many runs of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, None if arguments.runs is None else max(1, arguments.runs))
    except BenchError as exc:
        print(f"gateway: {exc}", file=sys.stderr)
        return 1
    facts = {"events_per_run": measured.events_per_run, **machine_facts(began)}
    print(show(rows(measured), facts, as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
