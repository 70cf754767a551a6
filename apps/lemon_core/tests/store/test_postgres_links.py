"""Servers that are busy, silent, gone and back (specification lemon_core 8.1)."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from lemon_core.store import PutValue, RunStore, Store, StoreBusy, StoreUnavailable
from lemon_core.testing import FakeClock
from lemon_core.testing.postgres import PostgresServer, postgres_server
from lemon_core.tests.store.nodes import Node, connect

pytestmark = pytest.mark.anyio

TABLE = "things"


@pytest.fixture
async def hurried(url: str) -> AsyncIterator[Store]:
    """A store that gives up after a moment."""
    patient = Node(url).store
    await patient.open()
    await patient.close()
    store = Node(url, timeout_ms=200).store
    await store.open()
    yield store
    await store.close()


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that a test may end, and that writes to the disk."""
    with postgres_server(fsync=True) as server:
        yield server


@pytest.fixture
async def survivor(mortal: PostgresServer) -> AsyncIterator[Store]:
    """A store on the server that comes and goes."""
    store = Node(mortal.fresh_url()).store
    await store.open()
    yield store
    await store.close()


async def test_a_row_that_is_held_is_busy_and_the_store_stays_usable(
    hurried: Store, url: str
) -> None:
    await hurried.put(TABLE, "k", "old")
    with anyio.fail_after(5), connect(url) as other, other.transaction():
        other.execute("SELECT 1 FROM lemon_store_kv FOR UPDATE")
        for write in (
            hurried.put(TABLE, "k", "refused"),
            hurried.transaction([PutValue(TABLE, "a", 1), PutValue(TABLE, "k", "refused")]),
        ):
            with pytest.raises(StoreBusy):
                await write
        assert await hurried.get(TABLE, "k") == "old"
    await hurried.put(TABLE, "k", "new")
    assert await hurried.list(TABLE) == [("k", "new")]


async def test_a_caller_who_finds_no_connection_free_is_told(hurried: Store, url: str) -> None:
    """Waiting for a connection counts as waiting for the database."""
    await hurried.put(TABLE, "k", 1)
    outcomes: list[type[Exception]] = []

    async def write() -> None:
        try:
            await hurried.put(TABLE, "k", 2)
        except (StoreBusy, StoreUnavailable) as exc:
            outcomes.append(type(exc))

    with anyio.fail_after(5), connect(url) as other, other.transaction():
        other.execute("SELECT 1 FROM lemon_store_kv FOR UPDATE")
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(write)
    assert outcomes == [StoreBusy] * 20


async def test_a_connection_that_ends_under_a_write_leaves_its_outcome_open(
    nodes: tuple[Store, Store], url: str
) -> None:
    await nodes[0].put(TABLE, "k", 1)
    failed: list[StoreUnavailable] = []

    async def write() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await nodes[0].put(TABLE, "k", 2)
        failed.append(caught.value)

    with anyio.fail_after(5), connect(url) as other, other.transaction():
        other.execute("SELECT 1 FROM lemon_store_kv FOR UPDATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while not terminated(url):
                await anyio.lowlevel.checkpoint()
    assert failed[0].outcome_unknown
    assert await nodes[0].get(TABLE, "k") == 1


def terminated(url: str) -> bool:
    """End the sessions that wait for a row; False while there are none."""
    with connect(url) as other:
        found = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname=current_database() AND wait_event_type='Lock'"
        )
        return bool(found.fetchall())


def sessions(url: str) -> list[int]:
    """The server's processes for the nodes."""
    with connect(url) as other:
        found = other.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname=current_database() AND application_name='lemon'"
        )
        return [int(str(pid)) for (pid,) in found]


async def test_a_server_that_falls_silent_leaves_a_write_open(hurried: Store, url: str) -> None:
    await hurried.put(TABLE, "k", 1)
    with ExitStack() as cleanup:
        for pid in sessions(url):
            os.kill(pid, signal.SIGSTOP)
            cleanup.callback(os.kill, pid, signal.SIGCONT)
        with anyio.fail_after(5):
            with pytest.raises(StoreUnavailable, match="no answer within 200 ms") as caught:
                await hurried.put(TABLE, "k", 2)
            assert caught.value.outcome_unknown
            # The silent connection is not used again.
            await hurried.put(TABLE, "other", 3)
            assert await hurried.get(TABLE, "other") == 3


async def test_a_session_has_what_the_store_relies_on(url: str) -> None:
    """Whatever it begins with."""
    node = Node(
        f"{url}%20-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable"
    )
    await node.store.open()
    for name, value in (
        ("synchronous_commit", "on"),
        ("transaction_isolation", "read committed"),
        ("statement_timeout", "5s"),
    ):
        assert await node.backend._rows(f"SHOW {name}", {}) == [(value,)]
    await node.store.close()


async def test_a_server_that_went_away_is_told_and_used_again(
    survivor: Store, mortal: PostgresServer
) -> None:
    await survivor.put(TABLE, "k", 1)
    mortal.stop()
    try:
        with anyio.fail_after(5):
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as caught:
                    await survivor.put(TABLE, "k", 2)
                assert not caught.value.outcome_unknown
            assert await survivor.get(TABLE, "k", "default") == "default"
            with pytest.raises(StoreUnavailable):
                await survivor.ping()
    finally:
        mortal.start()
    with anyio.fail_after(5):
        assert await survivor.get(TABLE, "k") == 1
        await survivor.put(TABLE, "k", 2)
    mortal.stop()
    mortal.start()
    with anyio.fail_after(5):
        # Not even one call fails: that the old connections have ended is seen before.
        await survivor.put(TABLE, "k", 3)
        assert await survivor.get(TABLE, "k") == 3


@pytest.mark.behaviour("lemon_core.22", "lemon_core.45")
async def test_what_was_confirmed_is_there_after_the_server_was_killed(
    survivor: Store, mortal: PostgresServer
) -> None:
    await survivor.put(TABLE, "k", "confirmed")
    runs = RunStore(survivor, FakeClock())
    assert await runs.begin("run_1", b"digest", session_key="s")
    mortal.kill()
    mortal.start()
    with anyio.fail_after(5):
        assert await survivor.get(TABLE, "k") == "confirmed"
        survivor.memory_table("runs").clear()  # what the end of the process does
        record = await RunStore(survivor, FakeClock()).get("run_1")
    assert record is not None
    assert (record.state, record.digest) == ("lost", b"digest")


async def test_a_kill_in_the_middle_of_writes_loses_none_that_was_confirmed(
    survivor: Store, mortal: PostgresServer
) -> None:
    confirmed: list[int] = []
    enough = anyio.Event()

    async def write(start: int) -> None:
        for number in itertools.count(start, 5):
            try:
                await survivor.put(TABLE, number, number)
            except StoreUnavailable:
                return
            confirmed.append(number)
            if len(confirmed) == 50:
                enough.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for start in range(5):
                tasks.start_soon(write, start)
            await enough.wait()
            await anyio.to_thread.run_sync(mortal.kill)
    mortal.start()
    with anyio.fail_after(5):
        stored = {value for _, value in await survivor.load_all(TABLE)}
    assert stored.issuperset(confirmed)
    # What was under way may have been committed too, one write of each writer at most.
    assert len(stored) <= len(confirmed) + 5


async def test_a_server_that_takes_nobody_in_is_told_within_the_limit(
    mortal: PostgresServer,
) -> None:
    store = Node(mortal.fresh_url(), timeout_ms=50).store
    mortal.freeze()
    try:
        with anyio.fail_after(5), pytest.raises(StoreUnavailable, match="did not answer within"):
            await store.open()
    finally:
        mortal.thaw()
