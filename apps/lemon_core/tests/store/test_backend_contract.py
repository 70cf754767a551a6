"""The one suite that every backend passes (specification lemon_core 8.1, 8.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

from lemon_core.store import (
    ABSENT,
    DeleteKey,
    Key,
    PutValue,
    Store,
    StoreUnavailable,
    UnsupportedValue,
)
from lemon_core.store.backend import DeleteRuns, FinishRun, Put, RunRow, Write
from lemon_core.testing import FakeClock
from lemon_core.testing.postgres import PostgresServer
from lemon_core.tests.store.backends import make_store

pytestmark = pytest.mark.anyio

TABLE = "things"


class Point(BaseModel):
    """A registered model."""

    x: int
    tags: tuple[str, ...] = ()


VALUES: list[object] = [
    None,
    True,
    7,
    2**70,
    -1.5,
    "text with \N{SNOWMAN}",
    "half a pair \ud83d",
    [1, [2, {"a": None}]],
    {"b": 1, "a": {"c": [True, "x"]}},
    (1, ("two", b"\x00\xff")),
    {"when": datetime(2026, 3, 1, 12, tzinfo=UTC), "bytes": b""},
    datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=-3))),
    {"__tuple__": "not one"},
    {"__map__": {"__bytes__": 1}},
    Point(x=1, tags=("a",)),
]
KEYS: list[Key] = ["k", "", 'quo"te', 5, -1, ("a", 1), ("a", "1"), ("a",)]


@pytest.mark.behaviour("lemon_core.22")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_values_come_back_equal(store: Store, value: object) -> None:
    store.codec.register(Point)
    await store.put(TABLE, "k", value)
    back = await store.get(TABLE, "k", "missing")
    assert (back, type(back)) == (value, type(value))


@pytest.mark.behaviour("lemon_core.22")
async def test_keys_are_distinct_and_come_back_equal(store: Store) -> None:
    for number, key in enumerate(KEYS):
        await store.put(TABLE, key, number)
    assert [await store.get(TABLE, key) for key in KEYS] == list(range(len(KEYS)))
    assert {key for key, _ in await store.list(TABLE)} == set(KEYS)


@pytest.mark.behaviour("lemon_core.22")
async def test_reads_are_total_and_deletes_idempotent(store: Store) -> None:
    assert await store.get("no_table", "k") is None
    assert await store.get("no_table", "k", 5) == 5
    assert await store.list("no_table") == []
    assert await store.take("no_table", "k") is None
    await store.delete("no_table", "k")
    await store.put(TABLE, "k", 1)
    await store.delete(TABLE, "k")
    await store.delete(TABLE, "k")
    assert await store.list(TABLE) == []


@pytest.mark.behaviour("lemon_core.22")
async def test_a_stored_null_is_not_absence(store: Store) -> None:
    await store.put(TABLE, "null", None)
    assert await store.list(TABLE) == [("null", None)]
    assert await store.get(TABLE, "null", "default") is None
    assert not await store.put_new(TABLE, "null", 1)
    assert not await store.compare_and_swap(TABLE, "null", ABSENT, 1)
    assert await store.compare_and_swap(TABLE, "null", None, 2)
    assert await store.get(TABLE, "null") == 2


@pytest.mark.behaviour("lemon_core.22")
async def test_put_new_has_one_winner(store: Store) -> None:
    won: list[int] = []

    async def claim(number: int) -> None:
        if await store.put_new(TABLE, "k", number):
            won.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(claim, number)
    assert len(won) == 1
    assert await store.get(TABLE, "k") == won[0]


@pytest.mark.behaviour("lemon_core.22")
async def test_compare_and_swap_has_one_winner(store: Store) -> None:
    await store.put(TABLE, "k", {"owner": None})
    won: list[int] = []

    async def claim(number: int) -> None:
        if await store.compare_and_swap(TABLE, "k", {"owner": None}, {"owner": number}):
            won.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(claim, number)
    assert len(won) == 1
    assert await store.get(TABLE, "k") == {"owner": won[0]}


@pytest.mark.behaviour("lemon_core.22")
async def test_compare_and_swap_takes_absence_on_either_side(store: Store) -> None:
    assert not await store.compare_and_swap(TABLE, "k", 1, 2)
    assert await store.compare_and_swap(TABLE, "k", ABSENT, (1, 2))
    assert not await store.compare_and_swap(TABLE, "k", [1, 2], ABSENT)
    assert await store.compare_and_swap(TABLE, "k", (1, 2), ABSENT)
    assert await store.compare_and_swap(TABLE, "k", ABSENT, ABSENT)
    assert await store.list(TABLE) == []


@pytest.mark.behaviour("lemon_core.22")
async def test_take_gives_the_value_to_one_caller(store: Store) -> None:
    await store.put(TABLE, "k", "value")
    got: list[object] = []

    async def take() -> None:
        got.append(await store.take(TABLE, "k", "nothing"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(take)
    assert sorted(map(str, got)) == ["nothing"] * 9 + ["value"]
    assert await store.get(TABLE, "k") is None


@pytest.mark.behaviour("lemon_core.22")
async def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    await store.put("one", "k", "old")
    await store.put("two", "gone", 1)
    with pytest.raises(UnsupportedValue):
        await store.transaction(
            [PutValue("one", "k", "new"), DeleteKey("two", "gone"), PutValue("one", "bad", {1})]
        )
    assert await store.get("one", "k") == "old"
    assert await store.get("two", "gone") == 1
    await store.transaction([PutValue("one", "k", "new"), DeleteKey("two", "gone")])
    assert await store.get("one", "k") == "new"
    assert await store.list("two") == []


@pytest.mark.behaviour("lemon_core.22")
async def test_a_transaction_covers_run_history(store: Store) -> None:
    row = RunRow("run_1", "s", 10, b"d", 20, b"{}")
    await store.transaction([FinishRun(row), PutValue("chat", "s", 1)])
    assert (await store.backend.get_run("run_1"), await store.get("chat", "s")) == (row, 1)
    await store.transaction([DeleteRuns("s"), DeleteKey("chat", "s")])
    assert (await store.backend.get_run("run_1"), await store.get("chat", "s")) == (None, None)


async def test_list_recent_is_newest_write_first(store: Store, clock: FakeClock) -> None:
    """Rewriting a row makes it recent again, also within one millisecond."""
    for key in ("a", "b", "c"):
        await store.put(TABLE, key, 1)
    await clock.advance(1)
    await store.put(TABLE, "b", 2)
    await store.put(TABLE, "a", 3)
    await store.transaction([PutValue(TABLE, "e", 4), PutValue(TABLE, "d", 5)])
    newest = [("d", 5), ("e", 4), ("a", 3), ("b", 2)]
    assert await store.list_recent(TABLE, 4) == newest
    await store.transaction([DeleteKey(TABLE, "e"), DeleteKey(TABLE, "d")])
    assert await store.list(TABLE) == [("a", 3), ("b", 2), ("c", 1)]


@pytest.mark.behaviour("lemon_core.24")
async def test_two_stores_are_isolated(
    store: Store,
    backend_name: str,
    tmp_path: Path,
    clock: FakeClock,
    server_of_backend: PostgresServer | None,
) -> None:
    other = make_store(backend_name, tmp_path / "other", clock, server_of_backend)
    await other.open()
    await store.put(TABLE, "k", 1)
    await other.put("chat", "k", 2)
    assert (await other.get(TABLE, "k"), await store.get("chat", "k")) == (None, None)
    await other.close()


async def test_ping_changes_nothing_and_fails_on_a_closed_store(store: Store) -> None:
    await store.ping()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    with pytest.raises(StoreUnavailable):
        await store.put(TABLE, "k", 1)
    assert await store.get(TABLE, "k", "default") == "default"


async def test_a_begin_mark_is_made_once(store: Store) -> None:
    first = RunRow("run_1", "s", 10, b"one")
    assert await store.backend.begin_run(first)
    assert not await store.backend.begin_run(RunRow("run_1", "t", 11, b"two"))
    assert await store.backend.get_run("run_1") == first


async def test_finishing_keeps_start_and_digest_of_the_mark(store: Store) -> None:
    await store.backend.begin_run(RunRow("run_1", "", 10, b"one"))
    await store.backend.transaction([FinishRun(RunRow("run_1", "s", 99, None, 20, b"{}"))])
    assert await store.backend.get_run("run_1") == RunRow("run_1", "s", 10, b"one", 20, b"{}")


async def test_history_sweep_keeps_the_newest_and_drops_the_old(store: Store) -> None:
    writes: list[Write] = [
        FinishRun(RunRow(f"run_{n}", "s", 100 + n, None, 200, b"{}")) for n in range(5)
    ]
    await store.backend.transaction([*writes, Put("chat", b'"s"', b"1")])
    await store.backend.begin_run(RunRow("old_mark", "s", 10, b"d"))
    await store.backend.begin_run(RunRow("mark", "s", 100, b"d"))
    assert await store.backend.sweep_runs(before_ms=101, keep_per_session=3) == 4
    left = await store.backend.finished_runs("s", 10)
    assert [row.run_id for row in left] == ["run_4", "run_3", "run_2"]
    assert await store.backend.get_run("mark") is None
    assert [row.run_id for row in await store.backend.finished_runs("s", 1)] == ["run_4"]
