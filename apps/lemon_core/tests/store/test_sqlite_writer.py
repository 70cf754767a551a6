"""How waiting writes become few statements (docs/decisions/0001-sqlite-without-sqlalchemy.md)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.store import Store, StoreUnavailable
from lemon_core.store.backend import Delete, DeleteRuns, FinishRun, Put, RunRow, Write
from lemon_core.store.sqlite_writer import Batch, BeginRun
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def backend_name() -> str:
    """This file is about SQLite alone."""
    return "sqlite"


def end(run_id: str, session_key: str = "s") -> FinishRun:
    """The end of a run."""
    return FinishRun(RunRow(run_id, session_key, 1, None, 2, b"{}"))


def test_writes_of_one_kind_are_one_statement(clock: FakeClock) -> None:
    one = Batch([end("run_1"), Put("chat", b"1", b"x"), Delete("chat", b"3")], clock)
    two = Batch([end("run_2"), Put("index", b"1", b"y"), Put("chat", b"1", b"z")], clock)
    mark = Batch([BeginRun(RunRow("run_3", "s", 1, b"d"))], clock)
    statements = one.joined([two, mark]).statements()
    assert [statement.sql.split(" (")[0] for statement in statements] == [
        "INSERT OR IGNORE INTO run_history VALUES",
        "INSERT INTO run_history VALUES",
        "INSERT OR REPLACE INTO lemon_store_kv VALUES",
        "DELETE FROM lemon_store_kv WHERE",
    ]
    now = clock.now_ms()
    assert statements[2].parameters == ["index", b"1", b"y", now, "chat", b"1", b"z", now]


async def test_a_large_transaction_is_split_and_still_whole(store: Store) -> None:
    writes: list[Write] = [Put("t", str(n).encode(), b"1") for n in range(2_500)]
    await store.backend.transaction(writes)
    assert len(await store.backend.list("t")) == 2_500
    await store.backend.transaction([Delete("t", str(n).encode()) for n in range(2_500)])
    assert await store.backend.list("t") == []


async def test_order_counts_around_the_removal_of_a_history(store: Store) -> None:
    await store.backend.transaction([end("old"), DeleteRuns("s"), end("new")])
    assert [row.run_id for row in await store.backend.finished_runs("s", 9)] == ["new"]
    await store.backend.transaction([end("newer"), DeleteRuns("s")])
    assert await store.backend.finished_runs("s", 9) == []


async def test_the_last_write_to_a_key_counts(store: Store) -> None:
    await store.backend.transaction(
        [Put("t", b"a", b"1"), Delete("t", b"a"), Put("t", b"b", b"1"), Put("t", b"b", b"2")]
    )
    assert await store.backend.list("t") == [(b"b", b"2")]


async def test_a_taken_mark_among_new_ones_is_told_to_its_caller_alone(store: Store) -> None:
    await store.backend.begin_run(RunRow("run_3", "s", 1, b"d"))
    begun: dict[str, bool] = {}

    async def begin(run_id: str) -> None:
        begun[run_id] = await store.backend.begin_run(RunRow(run_id, "s", 1, b"d"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(begin, f"run_{number}")
    assert begun == {f"run_{number}": number != 3 for number in range(6)}


async def test_two_marks_for_one_run_have_one_winner(store: Store) -> None:
    won: list[bool] = []

    async def begin() -> None:
        won.append(await store.backend.begin_run(RunRow("run_1", "s", 1, b"d")))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(begin)
    assert sorted(won) == [False, False, False, False, True]


async def test_a_write_that_the_table_refuses_takes_no_neighbour_along(store: Store) -> None:
    outcomes: list[str] = []

    async def write(number: int) -> None:
        # No value at all is what the table itself refuses of a plain mark.
        session_key = None if number == 2 else "s"
        row = RunRow(f"run_{number}", session_key, 1, b"d")  # type: ignore[arg-type]
        try:
            await store.backend.transaction([FinishRun(row), Put("t", str(number).encode(), b"1")])
            outcomes.append("kept")
        except StoreUnavailable:
            outcomes.append("refused")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(write, number)
    assert sorted(outcomes) == ["kept"] * 4 + ["refused"]
    assert [key for key, _ in await store.backend.list("t")] == [b"0", b"1", b"3", b"4"]
