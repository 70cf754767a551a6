"""`bazel run //tools/bench:router`: what an accepted message costs, and what the router adds.

Messages are sent to conversations that are busy, so that what is measured is taking them: the call,
the decision, the record on disk and the answer. Beside it the store alone commits as many rows, on
the same database. First deltas are measured through router and gateway and from the same gateway
alone, in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import anyio
import grpc.aio

from lemon.router.v1 import router_pb2 as router_pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.configured_store import URL_VARIABLE
from lemon_core.ids import new_uuid, run_id
from lemon_core.paths import PathSettings
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.listen import UnixListen
from lemon_core.rpc.router_client import RouterClient
from lemon_core.runs import RunRequest
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.testing import temp_home
from lemon_core.testing.postgres import postgres_server
from tools.bench.gateway_parts import MAX_CONCURRENT_RUNS, READY, Commands, one_run
from tools.bench.load import closed_loop
from tools.bench.processes import BenchError, Started, module_environ, running
from tools.bench.router_parts import HOLD, StoreName
from tools.bench.stats import Load, Timing, middle_share, percentile
from tools.bench.table import Row, at_least, at_most, machine_facts, show

STORES: Final[tuple[StoreName, ...]] = ("sqlite", "postgres")
SHOWN: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
AT_ONCE: Final = (1, 8, 50)
SUBMISSIONS: Final = {1: 300, 8: 750, 50: 750}
RUNS: Final = {1: 150, 8: 300, 50: 300}
# What is compared takes turns this often, so that what else the machine does hits both.
ROUNDS: Final = 3

SHARE_AIMS: Final = {1: at_least(0.3), 8: at_least(0.15), 50: at_least(0.1)}
"""Of the rows that the store alone commits."""
TIMES_AIMS: Final = {1: at_most(2.5), 8: at_most(3), 50: at_most(3)}
"""First deltas through the router, in times of the gateway's."""


@dataclass(slots=True)
class Measured:
    """Each round of submissions and of bare rows by store and how many at once, and the p50 of
    first deltas by way."""

    submissions: dict[tuple[str, int], list[Load]] = field(default_factory=dict)
    rows: dict[tuple[str, int], list[Load]] = field(default_factory=dict)
    first_ms: dict[tuple[str, int], list[float]] = field(default_factory=dict)


async def measure(most: int | None) -> Measured:
    """Measure everything once, with at most `most` of everything."""
    measured = Measured()
    with postgres_server(fsync=True) as postgres:
        for name in STORES:
            url, alone = (
                postgres.fresh_url() if name == "postgres" else None for _ in ("server", "alone")
            )
            async with _server(name, url) as (home, server), _store(name, alone) as store:
                await _submissions(measured, name, home, server, store, most)
                if name == "sqlite":
                    await _first_deltas(measured, home, most)
    return measured


def _few(number: int, most: int | None) -> int:
    return number if most is None else min(number, most)


def _per_round(number: int, most: int | None) -> int:
    return max(1, _few(number, most) // ROUNDS)


@asynccontextmanager
async def _store(name: StoreName, url: str | None) -> AsyncIterator[Store]:
    """The store alone, in this process."""
    with temp_home() as paths:
        settings = StoreSettings(name, paths.home / "store", url)
        async with open_store(settings, SystemClock()) as store:
            yield store


@asynccontextmanager
async def _server(name: StoreName, url: str | None) -> AsyncIterator[tuple[Path, Started]]:
    with temp_home() as paths:
        command = [sys.executable, "-m", "tools.bench.router_parts", str(paths.home), name]
        environ = {**module_environ(), **({} if url is None else {URL_VARIABLE: url})}
        async with running(command, ready=READY, environ=environ) as server:
            yield paths.home, server


# --- submissions ---


class Sender:
    """Sends messages to busy conversations, as thin as the contract allows."""

    def __init__(self, channel: grpc.aio.Channel, cwd: Path) -> None:
        self._stub = router_pb2_grpc.RouterServiceStub(channel)
        self._cwd = str(cwd)
        self._sessions: list[str] = []
        self._numbers = count()

    async def occupy(self, conversations: int) -> None:
        """Begin a run in each of so many conversations; they go on until `free`."""
        for _ in range(conversations):
            self._sessions.append(f"agent:default:main:sub:{new_uuid()}")
            await self._submit(self._sessions[-1], HOLD)

    async def send(self) -> Timing:
        """A message, to its answer."""
        began = time.perf_counter()
        session = self._sessions[next(self._numbers) % len(self._sessions)]
        await self._submit(session, "Say hello.")
        taken = time.perf_counter() - began
        return Timing(taken, taken)

    async def free(self) -> None:
        """End everything."""
        for session in self._sessions:
            request = router_pb.AbortSessionRequest(session_key=session, reason="user_requested")
            await self._stub.AbortSession(request)

    async def _submit(self, session: str, prompt: str) -> None:
        request = router_pb.RunRequest(
            run_id=run_id(),
            session_key=session,
            prompt=prompt,
            cwd=self._cwd,
            contract_version=1,
        )
        answer = await self._stub.SubmitRun(request)
        if answer.status != router_pb.SUBMIT_STATUS_ACCEPTED:
            raise BenchError(f"the router refused a message: {answer.reason}")


async def _submissions(
    measured: Measured,
    name: StoreName,
    home: Path,
    server: Started,
    store: Store,
    most: int | None,
) -> None:
    """Messages, and new rows of about the size of their records through the store alone."""
    socket = PathSettings(home).router_socket
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        sender = Sender(channel, home)
        await sender.occupy(_few(MAX_CONCURRENT_RUNS, most))
        for at_once in AT_ONCE:
            number = _per_round(SUBMISSIONS[at_once], most)
            await closed_loop(sender.send, at_once=at_once, count=min(number, 50))
            for _ in range(ROUNDS):
                taken = await closed_loop(
                    sender.send, at_once=at_once, count=number, cpu_seconds=server.cpu_seconds
                )
                alone = await closed_loop(lambda: _row(store), at_once=at_once, count=number)
                measured.submissions.setdefault((name, at_once), []).append(taken)
                measured.rows.setdefault((name, at_once), []).append(alone)
        await sender.free()


async def _row(store: Store) -> Timing:
    began = time.perf_counter()
    await store.put_new("rows", new_uuid(), {"text": "x" * 1_500})
    taken = time.perf_counter() - began
    return Timing(taken, taken)


# --- first deltas ---


async def _first_deltas(measured: Measured, home: Path, most: int | None) -> None:
    async with AsyncExitStack() as stack:
        paths, clock = PathSettings(home), SystemClock()
        gateway = await stack.enter_async_context(
            GrpcEngineRuntime(UnixListen(paths.gateway_socket), bus=Bus(), clock=clock)
        )
        router = await stack.enter_async_context(
            RouterClient(UnixListen(paths.router_socket), clock=clock)
        )
        commands = Commands(home)

        async def alone() -> Timing:
            return (await one_run(gateway, commands))[0]

        async def through() -> Timing:
            return await _run(router, home)

        for at_once in AT_ONCE:
            number = _per_round(RUNS[at_once], most)
            for _ in range(ROUNDS):
                for way, one in (("gateway", alone), ("router", through)):
                    load = await closed_loop(one, at_once=at_once, count=number)
                    times = measured.first_ms.setdefault((way, at_once), [])
                    times.append(load.first_token_ms.p50)


async def _run(router: RouterClient, cwd: Path) -> Timing:
    name, first = run_id(), 0.0
    request = RunRequest(
        run_id=name,
        session_key=f"agent:default:main:sub:{new_uuid()}",
        prompt="Say hello.",
        cwd=str(cwd),
    )
    began = time.perf_counter()
    answer = await router.submit_run(request)
    if answer.status != "accepted":
        raise BenchError(f"the router refused a run: {answer.reason}")
    async with aclosing(router.watch(name)) as events:
        async for event in events:
            if not first and event.type == "delta":
                first = time.perf_counter() - began
    return Timing(first, time.perf_counter() - began)


# --- the table ---


def rows(measured: Measured) -> list[Row]:
    """The table: shares and times first, because they do not depend on the machine."""
    shares: list[Row] = []
    plain: list[Row] = []
    for name in STORES:
        for at_once in AT_ONCE:
            taken, alone = measured.submissions[name, at_once], measured.rows[name, at_once]
            where = f"{SHOWN[name]}, {at_once} at once"
            taken_per_s = [load.per_second for load in taken]
            alone_per_s = [load.per_second for load in alone]
            share, aim = middle_share(taken_per_s, alone_per_s), SHARE_AIMS[at_once]
            shares.append(Row(f"submissions, share of bare rows, {where}", share, "", aim))
            plain += [
                Row(f"accepted submissions, {where}", percentile(taken_per_s, 50), "1/s"),
                _middle(f"answer, {where}, p50", [load.total_ms.p50 for load in taken]),
                _middle(f"server CPU a submission, {where}", [ld.cpu_ms_per_run for ld in taken]),
                Row(f"rows through the store alone, {where}", percentile(alone_per_s, 50), "1/s"),
            ]
    for at_once in AT_ONCE:
        through = measured.first_ms["router", at_once]
        beside = measured.first_ms["gateway", at_once]
        where, times = f"{at_once} at once", middle_share(through, beside)
        told = f"submit to first delta, times the gateway's, {where}"
        shares.append(Row(told, times, "", TIMES_AIMS[at_once]))
        plain += [
            _middle(f"submit to first delta, router and gateway, {where}", through),
            _middle(f"submit to first delta, gateway alone, {where}", beside),
        ]
    return [*shares, *plain]


def _middle(name: str, milliseconds: Sequence[float]) -> Row:
    return Row(name, percentile(milliseconds, 50), "ms")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="router", description="What an accepted message costs.")
    parser.add_argument("--runs", type=int, help="at most this many of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, None if arguments.runs is None else max(1, arguments.runs))
    except BenchError as exc:
        print(f"router: {exc}", file=sys.stderr)
        return 1
    print(show(rows(measured), machine_facts(began), as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
