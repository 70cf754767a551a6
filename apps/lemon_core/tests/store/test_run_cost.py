"""What a run costs after thousands of others, and what leaves the store by which rule."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from lemon_core.store import RunStore, Store, StoreError
from lemon_core.store.backend import Delete, DeleteRuns, Put, RunRow, Write
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.run_store import HISTORY_PER_SESSION
from lemon_core.store.sqlite import SqliteBackend
from lemon_core.store.sqlite_file import connect
from lemon_core.store.usage import UsageStore
from lemon_core.testing import FakeClock
from lemon_core.usage_meter import UsageMeter

pytestmark = pytest.mark.anyio

RUNS, SESSIONS = 3_000, 30


class Scale(MemoryBackend):
    """Weighs what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.rows = 0, 0

    async def begin_run(self, row: RunRow) -> bool:
        self._weigh(row.session_key.encode())
        return await super().begin_run(row)

    async def transaction(self, writes: Sequence[Write]) -> None:
        for write in writes:
            match write:
                case Put():
                    self._weigh(write.value)
                case Delete() | DeleteRuns():
                    self._weigh(b"")
                case _:
                    self._weigh(write.row.summary or b"")
        await super().transaction(writes)

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        self._weigh(new or b"")
        return await super().compare_and_swap(table, key, expected, new)

    def _weigh(self, data: bytes) -> None:
        self.bytes += len(data)
        self.rows += 1


def session(number: int) -> str:
    return f"agent:default:main:sub:{number % SESSIONS:03}"


def summary(number: int) -> dict[str, object]:
    usage = {"input": 10, "output": 2}
    completed = {"ok": True, "answer": "a" * 100, "usage": usage}
    return {"completed": completed, "session_key": session(number), "prompt": "p" * 100}


async def do_run(runs: RunStore, number: int) -> None:
    run_id = f"run_{number:06}"
    await runs.begin(run_id, b"digest", session_key=session(number))
    for _ in range(5):
        runs.append_event(run_id, {"type": "delta"})
    await runs.finalize(run_id, summary(number))


@pytest.mark.behaviour("lemon_core.103")
async def test_a_run_costs_the_same_after_thousands_of_others(clock: FakeClock) -> None:
    backend = Scale()
    store = Store(backend)
    await store.open()
    meter = UsageMeter(UsageStore(store), clock)
    runs = RunStore(store, clock, hooks=lambda: [meter.count])
    costs: list[tuple[int, int]] = []
    for number in range(RUNS):
        bytes_before, rows_before = backend.bytes, backend.rows
        await do_run(runs, number)
        await runs.flush()
        await meter.flush()
        costs.append((backend.bytes - bytes_before, backend.rows - rows_before))
        runs.drop(f"run_{number:06}")
    early, late = costs[SESSIONS * 2], costs[-1]
    assert late[1] == early[1]
    # The same rows; only their counters have more digits.
    assert late[0] <= early[0] + 40
    assert store.memory_table("runs") == {}
    assert len(await runs.list_sessions()) == SESSIONS
    await runs.sweep()
    for number in range(SESSIONS):
        history = await runs.history(session(number), limit=RUNS)
        assert len(history) == HISTORY_PER_SESSION


SUMMARIES = ("run_history", "summary_blob")


class WithoutSummaries(SqliteBackend):
    """Refuses to read what runs said, and counts who tried."""

    refused = 0

    def _connect(self) -> sqlite3.Connection:
        db = connect(self.path)

        def authorize(action: int, table: str | None, column: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and (table, column) == SUMMARIES:
                self.refused += 1
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK

        db.set_authorizer(authorize)
        return db


@pytest.fixture
async def filled(tmp_path: Path, clock: FakeClock) -> Path:
    """A file with runs of three sessions, more of each than the history keeps."""
    file = tmp_path / "store.sqlite3"
    store = Store(SqliteBackend(file, clock))
    await store.open()
    runs = RunStore(store, clock)
    for number in range(3 * (HISTORY_PER_SESSION + 5)):
        await clock.advance(1)
        key = session(number % 3)
        await runs.finalize(f"run_{number:06}", {**summary(number), "session_key": key})
    await store.close()
    return file


@pytest.fixture
def blind(filled: Path, clock: FakeClock) -> WithoutSummaries:
    """The backend over that file that cannot read summaries."""
    return WithoutSummaries(filled, clock)


@pytest.mark.behaviour("lemon_core.103")
async def test_starting_listing_sessions_and_sweeping_read_no_transcript(
    blind: WithoutSummaries, clock: FakeClock
) -> None:
    store = Store(blind)
    await store.open()
    runs = RunStore(store, clock)
    assert len(await runs.list_sessions()) == 3
    assert await runs.get_session(session(0)) is not None
    await runs.sweep()
    assert blind.refused == 0
    with pytest.raises(StoreError):
        await runs.history(session(0))
    assert blind.refused > 0
    await store.close()


async def test_history_is_found_and_ordered_by_its_index_alone(filled: Path) -> None:
    finished = "FROM run_history WHERE session_key=? AND finished_at_ms IS NOT NULL"
    order = "ORDER BY started_at_ms DESC, run_id DESC"
    db = connect(filled)
    for columns, covering in (("run_id", "COVERING "), ("run_id, summary_blob", "")):
        plan = db.execute(f"EXPLAIN QUERY PLAN SELECT {columns} {finished} {order}", ("s",))
        steps = [row[3] for row in plan]
        assert steps == [
            f"SEARCH run_history USING {covering}INDEX run_history_session (session_key=?)"
        ]
    db.close()
