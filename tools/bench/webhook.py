"""`bazel run //tools/bench:webhook`: what a webhook costs, with and without an idempotency key.

The server has its store on SQLite, and a router that takes everything at once: what is measured is
HTTP, the checks of a request, and with a key its two commits. Without a key the same server does
not touch its store. A repeat reads the stored answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import aiohttp
import anyio

from lemon_core.ids import new_uuid
from lemon_core.testing import temp_home
from tools.bench.load import closed_loop
from tools.bench.processes import BenchError, Started, running
from tools.bench.stats import Load, Timing, middle_share, percentile
from tools.bench.table import Aim, Row, at_least, machine_facts, show
from tools.bench.webhook_parts import READY, TOKEN

Way = Literal["without a key", "with a key", "repeated"]

WAYS: Final[tuple[Way, ...]] = get_args(Way)
AT_ONCE: Final = (1, 8, 50)
REQUESTS: Final = {1: 600, 8: 1_500, 50: 1_500}
# The ways take turns this often, so that what else the machine does hits all.
ROUNDS: Final = 3
SHARE_AIMS: Final[dict[int, Aim]] = {1: at_least(0.2), 8: at_least(0.2), 50: at_least(0.4)}
"""Of what the same server accepts without its store."""


@dataclass(slots=True)
class Measured:
    """Each round by way and how many at once."""

    loads: dict[tuple[Way, int], list[Load]] = field(default_factory=dict)


class Sender:
    """Sends webhooks over connections that stay open."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session, self._url = session, f"{address}/webhooks/bench"

    async def send(self, key: str | None) -> Timing:
        """A delivery, to its answer."""
        headers = {"X-Webhook-Token": TOKEN}
        if key is not None:
            headers["Idempotency-Key"] = key
        began = time.perf_counter()
        async with self._session.post(
            self._url, json={"prompt": "Say hello."}, headers=headers
        ) as answer:
            if answer.status != 202:
                raise BenchError(f"a webhook was answered with {answer.status}")
            await answer.read()
        taken = time.perf_counter() - began
        return Timing(taken, taken)

    def of(self, way: Way, repeated: str) -> Callable[[], Awaitable[Timing]]:
        """What sends one delivery in this way."""
        match way:
            case "without a key":
                return lambda: self.send(None)
            case "with a key":
                return lambda: self.send(new_uuid())
            case "repeated":
                return lambda: self.send(repeated)


async def measure(most: int | None) -> Measured:
    """Measure everything once, with at most `most` of everything."""
    measured = Measured()
    with temp_home() as paths:
        command = [sys.executable, "-m", "tools.bench.webhook_parts", str(paths.home)]
        async with running(command, ready=READY) as server:
            address = server.line.rpartition(READY)[2].strip()
            connector = aiohttp.TCPConnector(limit=max(AT_ONCE))
            async with aiohttp.ClientSession(connector=connector) as session:
                await _all_ways(measured, Sender(session, address), server, most)
    return measured


async def _all_ways(measured: Measured, sender: Sender, server: Started, most: int | None) -> None:
    repeated = new_uuid()
    await sender.send(repeated)
    for at_once in AT_ONCE:
        number = REQUESTS[at_once] // ROUNDS
        number = number if most is None else max(1, min(number, most))
        await closed_loop(sender.of("with a key", repeated), at_once=at_once, count=min(number, 50))
        for _ in range(ROUNDS):
            for way in WAYS:
                load = await closed_loop(
                    sender.of(way, repeated),
                    at_once=at_once,
                    count=number,
                    cpu_seconds=server.cpu_seconds,
                )
                measured.loads.setdefault((way, at_once), []).append(load)


def rows(measured: Measured) -> list[Row]:
    """The table: shares first, because they do not depend on the machine."""
    shares: list[Row] = []
    plain: list[Row] = []
    for at_once in AT_ONCE:
        per_s = {way: [load.per_second for load in measured.loads[way, at_once]] for way in WAYS}
        share = middle_share(per_s["with a key"], per_s["without a key"])
        told = f"with a key, share of without, {at_once} at once"
        shares.append(Row(told, share, "", SHARE_AIMS[at_once]))
        for way in WAYS:
            loads, where = measured.loads[way, at_once], f"{way}, {at_once} at once"
            answer = [load.total_ms.p50 for load in loads]
            cpu = [load.cpu_ms_per_run for load in loads]
            plain += [
                Row(f"webhooks {where}", percentile(per_s[way], 50), "1/s"),
                Row(f"answer {where}, p50", percentile(answer, 50), "ms"),
                Row(f"server CPU {where}", percentile(cpu, 50), "ms"),
            ]
    return [*shares, *plain]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="webhook", description="What a webhook costs.")
    parser.add_argument("--runs", type=int, help="at most this many of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, None if arguments.runs is None else max(1, arguments.runs))
    except BenchError as exc:
        print(f"webhook: {exc}", file=sys.stderr)
        return 1
    print(show(rows(measured), machine_facts(began), as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
