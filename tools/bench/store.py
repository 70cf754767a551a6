"""`bazel run //tools/bench:store`: what a commit through the store costs beside bare `sqlite3`.

Both write the same rows to a file with a write-ahead log and `synchronous=FULL`, so both wait for
the disk. Bare `sqlite3` commits once for each row, as a program without a store would, and once for
as many rows as there are callers, which is the best that any number of callers could get.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio

from lemon_core.clock import SystemClock
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.store.sqlite_file import connect, create_private
from tools.bench.load import closed_loop
from tools.bench.stats import Timing, middle_share, percentile
from tools.bench.table import Aim, Row, at_least, machine_facts, show

AT_ONCE: Final = (1, 8, 50)
KEYS: Final = 1_000
# The kinds take turns this often, so that what else the machine does hits all of them.
ROUNDS: Final = 10

_VALUE: Final[dict[str, object]] = {"text": "x" * 200, "number": 1, "list": [1, 2, 3]}
_TABLE: Final = (
    "CREATE TABLE rows (table_name TEXT NOT NULL, key_blob BLOB NOT NULL,"
    " value_blob BLOB NOT NULL, updated_at_ms INTEGER NOT NULL,"
    " PRIMARY KEY (table_name, key_blob))"
)
_PUT: Final = "INSERT OR REPLACE INTO rows VALUES ('things', ?, ?, 1)"

# Of the commits per second, the share of bare sqlite3 with one commit for each row, and with one
# for as many rows as there are callers.
SINGLE_AIMS: Final[Mapping[int, Aim]] = {1: at_least(0.5), 8: at_least(1), 50: at_least(2)}
GROUPED_AIMS: Final[Mapping[int, Aim]] = {8: at_least(0.25), 50: at_least(0.1)}

PerSecond = dict[tuple[str, int], list[float]]
"""Rows per second in each round, by kind (`store`, `single`, `grouped`) and callers at once."""


class Bare:
    """`sqlite3` alone, on a connection with the store's pragmas."""

    def __init__(self, connection: sqlite3.Connection, value: bytes) -> None:
        self._connection, self._value = connection, value

    def write(self, count: int, *, rows_per_commit: int) -> float:
        """Rows per second over about `count` rows."""
        began, done = time.perf_counter(), 0
        while done < count:
            self._connection.execute("BEGIN IMMEDIATE")
            for number in range(done, done + rows_per_commit):
                key = str(number % KEYS).encode()
                self._connection.execute(_PUT, (key, self._value))
            self._connection.execute("COMMIT")
            done += rows_per_commit
        return done / (time.perf_counter() - began)


async def store_puts(store: Store, count: int, *, at_once: int) -> float:
    """Rows per second through the store, with `at_once` callers that wait for their commit."""
    done = 0

    async def put() -> Timing:
        nonlocal done
        done += 1
        began = time.perf_counter()
        await store.put("things", done % KEYS, _VALUE)
        taken = time.perf_counter() - began
        return Timing(taken, taken)

    return (await closed_loop(put, at_once=at_once, count=count)).per_second


async def measure(count: int, folder: Path) -> PerSecond:
    """What each round of each kind gave, each kind with about `count` rows in all."""
    per_round = max(1, count // ROUNDS)
    file = folder / "bare.sqlite3"
    create_private(file)
    async with open_store(StoreSettings("sqlite", folder / "store"), SystemClock()) as store:
        with closing(connect(file)) as connection:
            connection.execute(_TABLE)
            bare = Bare(connection, store.codec.encode(_VALUE))
            found: PerSecond = {}
            for at_once in AT_ONCE:
                kinds = _kinds(store, bare, per_round, at_once)
                for _ in range(ROUNDS):
                    for name, one in kinds.items():
                        found.setdefault((name, at_once), []).append(await one())
    return found


def _kinds(
    store: Store, bare: Bare, count: int, at_once: int
) -> dict[str, Callable[[], Awaitable[float]]]:
    async def single() -> float:
        return bare.write(count, rows_per_commit=1)

    async def grouped() -> float:
        return bare.write(count, rows_per_commit=at_once)

    return {
        "store": lambda: store_puts(store, count, at_once=at_once),
        "single": single,
        "grouped": grouped,
    }


def rows(per_second: PerSecond) -> list[Row]:
    """The table: the shares first, because they do not depend on the disk."""
    shares: list[Row] = []
    plain: list[Row] = []
    for at_once in AT_ONCE:
        store = per_second["store", at_once]
        single, grouped = per_second["single", at_once], per_second["grouped", at_once]
        name = f"{at_once} at once"
        shares.append(
            Row(
                f"share of sqlite3, a commit each, {name}",
                middle_share(store, single),
                "",
                SINGLE_AIMS[at_once],
            )
        )
        if at_once > 1:
            aim = GROUPED_AIMS[at_once]
            share = middle_share(store, grouped)
            shares.append(Row(f"share of sqlite3, {at_once} rows a commit", share, "", aim))
            plain.append(Row(f"sqlite3, {at_once} rows a commit", percentile(grouped, 50), "1/s"))
        plain.append(Row(f"rows through the store, {name}", percentile(store, 50), "1/s"))
        plain.append(Row(f"sqlite3, a commit each, beside {name}", percentile(single, 50), "1/s"))
    return [*shares, *plain]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="store", description="What a commit costs.")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        measured = anyio.run(measure, max(1, arguments.rows), Path(folder))
    facts = {"sqlite": sqlite3.sqlite_version, **machine_facts(began)}
    print(show(rows(measured), facts, as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
