"""What only a shared database can show (specification lemon_core 8.1, 8.2; DESIGN ruling 14)."""

from __future__ import annotations

import os

import anyio
import anyio.lowlevel
import pytest

from lemon_core.store import (
    DeleteKey,
    PutValue,
    RunStore,
    Store,
    StoreCorrupt,
    StoreTooNew,
    StoreUnavailable,
    UnsupportedValue,
)
from lemon_core.store.postgres_schema import FORMAT
from lemon_core.testing import FakeClock
from lemon_core.testing.postgres import PostgresServer
from lemon_core.tests.store.nodes import Node, connect

pytestmark = pytest.mark.anyio

TABLE = "things"


# Random, because the server packs what repeats.
LONG_KEY = os.urandom(8_000).hex()


def test_the_server_is_the_version_that_is_meant(postgres: PostgresServer) -> None:
    assert "(PostgreSQL) 18." in postgres.version()


@pytest.mark.behaviour("lemon_core.22")
async def test_two_nodes_see_each_others_writes(nodes: tuple[Store, Store]) -> None:
    """Tables that one node would mirror are read from the database too."""
    one, two = nodes
    await two.register_cached_table("registered")
    for table in ("chat", "sessions_index", "registered", TABLE):
        await one.put(table, "k", {"from": "one"})
        assert await two.get(table, "k") == {"from": "one"}
        assert await two.list(table) == [("k", {"from": "one"})]
        await two.delete(table, "k")
        assert await one.get(table, "k") is None
    await one.put("runs", "run_1", "live here")
    assert await two.get("runs", "run_1") is None
    run = RunStore(one, FakeClock())
    assert await run.begin("run_1", b"digest", session_key="s")
    assert not await RunStore(two, FakeClock()).begin("run_1", b"digest")


@pytest.mark.behaviour("lemon_core.22")
async def test_one_winner_over_two_nodes(nodes: tuple[Store, Store]) -> None:
    won: list[tuple[str, int]] = []

    async def claim(number: int) -> None:
        store = nodes[number % 2]
        if await store.put_new(TABLE, "new", number):
            won.append(("put_new", number))
        if await store.compare_and_swap(TABLE, "swapped", {"owner": None}, {"owner": number}):
            won.append(("compare_and_swap", number))
        if await store.take(TABLE, "taken") is not None:
            won.append(("take", number))

    await nodes[0].put(TABLE, "swapped", {"owner": None})
    await nodes[0].put(TABLE, "taken", 1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(claim, number)
    winners = dict(won)
    assert sorted(name for name, _ in won) == ["compare_and_swap", "put_new", "take"]
    assert await nodes[1].get(TABLE, "new") == winners["put_new"]
    assert await nodes[1].get(TABLE, "swapped") == {"owner": winners["compare_and_swap"]}


async def test_transactions_in_opposite_orders_do_not_wait_for_each_other(
    nodes: tuple[Store, Store],
) -> None:
    keys = [f"k{number}" for number in range(10)]

    async def write(number: int) -> None:
        order = keys if number % 2 else list(reversed(keys))
        half = len(order) // 2
        puts = [PutValue(TABLE, key, number) for key in order[:half]]
        await nodes[number % 2].transaction([*puts, *(DeleteKey(TABLE, k) for k in order[half:])])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(write, number)
    left = await nodes[0].list(TABLE)
    assert len(left) == 5
    assert len({value for _, value in left}) == 1  # each transaction was whole


async def test_a_transaction_that_fails_leaves_nothing(nodes: tuple[Store, Store]) -> None:
    await nodes[0].put(TABLE, "k", "old")
    with pytest.raises(UnsupportedValue):
        await nodes[0].transaction([PutValue(TABLE, "k", "new"), PutValue("bad\0", "k", 1)])
    with pytest.raises(UnsupportedValue):
        await nodes[0].transaction([PutValue(TABLE, "k", "new"), PutValue(TABLE, LONG_KEY, 1)])
    assert await nodes[1].list(TABLE) == [("k", "old")]


@pytest.mark.behaviour("lemon_core.22")
async def test_everything_is_there_after_reopening(url: str) -> None:
    for expected in (None, (1, b"x")):
        store = Node(url).store
        await store.open()
        assert await store.get(TABLE, ("k", 1)) == expected
        await store.put(TABLE, ("k", 1), (1, b"x"))
        await store.close()


async def test_closing_writes_what_was_submitted(nodes: tuple[Store, Store]) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(nodes[0].put, TABLE, number, number)
            await anyio.lowlevel.checkpoint()
            await nodes[0].close()
    assert len(await nodes[1].list(TABLE)) == 30


async def test_a_damaged_row_raises(nodes: tuple[Store, Store], url: str) -> None:
    await nodes[0].put("chat", "s", 1)
    with connect(url) as other:
        other.execute("UPDATE lemon_store_kv SET value_blob='{'")
    with pytest.raises(StoreCorrupt):
        await nodes[0].get("chat", "s", "default")


async def test_a_newer_database_is_refused_and_untouched(url: str) -> None:
    store = Node(url).store
    await store.open()
    await store.close()
    with connect(url) as other:
        other.execute("UPDATE lemon_store_meta SET value=%s", (str(FORMAT + 1),))
        other.execute("DROP TABLE run_history")
        with pytest.raises(StoreTooNew) as caught:
            await Node(url).store.open()
        assert other.execute("SELECT to_regclass('run_history')").fetchone() == (None,)
    assert "newer Lemon" in str(caught.value)
    assert "LEMON_STORE_PATH" not in str(caught.value)


async def test_a_role_that_may_not_make_the_tables_is_told(
    url: str,
) -> None:
    schema = url.rpartition("%3D")[2]
    with connect(url) as other:
        other.execute("DROP ROLE IF EXISTS guest")
        other.execute("CREATE ROLE guest LOGIN")
        other.execute(f"GRANT USAGE ON SCHEMA {schema} TO guest")
        with pytest.raises(StoreUnavailable, match=f"permission denied for schema {schema}"):
            await Node(url.replace("//lemon@", "//guest@")).store.open()
        other.execute("DROP OWNED BY guest")
        other.execute("DROP ROLE guest")
