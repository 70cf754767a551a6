"""The sessions that routers of one store hold (ruling 16)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import anyio
import pytest

from lemon_core.nodes import holding_sessions, node_watch
from lemon_core.store import RunStore, Store, StoreSettings, open_store
from lemon_core.store.advisory import NameTaken
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.node_locks import NodeLocks
from lemon_core.testing import FakeClock
from lemon_core.testing.postgres import PostgresServer
from lemon_core.tests.store.nodes import connect

pytestmark = pytest.mark.anyio

KEY = "agent:default:main"


@asynccontextmanager
async def node(url: str, name: str, clock: FakeClock | None = None) -> AsyncIterator[NodeLocks]:
    settings = StoreSettings("postgres", url=url)
    async with (
        open_store(settings, clock or FakeClock()) as store,
        holding_sessions(store, name) as locks,
    ):
        assert locks is not None
        yield locks


def cut(url: str, locks: NodeLocks) -> None:
    """End the connection of a node."""
    with connect(url) as outside:
        outside.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype='advisory' AND"
            " ((classid::bigint << 32) | objid::bigint)=%s",
            (locks._node_number(locks._node_id),),
        )


async def test_one_of_many_has_a_key_until_it_gives_it_back(url: str) -> None:
    with anyio.fail_after(10):
        async with node(url, "r1") as one, node(url, "r2") as two:
            assert await one.attempt(KEY) == "ours"
            assert (one.holds(KEY), two.holds(KEY)) == (True, False)
            assert await two.attempt(KEY) == "elsewhere"
            assert await two.attempt("agent:other:main") == "ours"
            # What is held already costs nothing, and is held once.
            assert await one.take(KEY) == "ours"
            one.give(KEY)
            one.give(KEY)
            assert not one.holds(KEY)
            while await two.attempt(KEY) == "elsewhere":
                await anyio.lowlevel.checkpoint()
            assert await one.attempt(KEY) == "elsewhere"


async def test_who_wants_a_key_is_heard_and_told_when_it_is_free(url: str) -> None:
    """The clocks stand still, so that nothing is found by asking again."""
    with anyio.fail_after(10):
        async with node(url, "r1") as one, node(url, "r2") as two:
            one.watch.wanted = lambda key: one.give(key, tell=True)
            await one.take(KEY)
            assert await two.take(KEY) == "ours"
            assert two.holds(KEY)


async def test_a_key_of_a_dead_node_is_taken_with_a_warning(url: str) -> None:
    clock = FakeClock()
    with anyio.fail_after(10):
        async with node(url, "r2", clock) as two, anyio.create_task_group() as tasks:
            two.know(["r1", "r2"])
            warned: list[str] = []

            async def take() -> None:
                warned.append(await two.take(KEY))

            async with node(url, "r1") as one:
                await one.take(KEY)
                assert await two.take("agent:other:main") == "ours", "the other node lives"
                assert not await two.others_dead()
                tasks.start_soon(take)
                await clock.wait_for_sleepers()
            # It ended without a word; asking again finds out.
            while not warned:
                await clock.advance(1_000)
            assert warned == ["ours_beside_dead"]
            assert await two.take("agent:third:main") == "ours_beside_dead"
            assert await two.others_dead()
            two.know([], instead_of=two.known)
            assert await two.take("agent:fourth:main") == "ours"


async def test_a_node_that_says_it_is_there_is_known(url: str) -> None:
    with anyio.fail_after(10):
        async with node(url, "r2") as two:
            async with node(url, "r1") as one:
                one.announce()
                while not two.known:
                    await anyio.lowlevel.checkpoint()
            while await two.take(KEY) == "ours":
                two.give(KEY)


async def test_after_a_cut_what_is_still_free_is_taken_again(url: str) -> None:
    clock, told = FakeClock(), anyio.Event()
    lost: list[Collection[str]] = []
    with anyio.fail_after(10):
        async with node(url, "r1", clock) as one, node(url, "r2") as two:
            await one.take(KEY)
            await one.take("agent:other:main")

            def renewed(keys: Collection[str]) -> None:
                lost.append(keys)
                told.set()

            one.watch.renewed = renewed
            cut(url, one)
            while await two.attempt(KEY) == "elsewhere":
                await anyio.lowlevel.checkpoint()
            while not told.is_set():
                await clock.advance(1_000)
            assert lost == [[KEY]]
            assert (one.holds(KEY), one.holds("agent:other:main")) == (False, True)
            assert await two.attempt("agent:other:main") == "elsewhere"


async def test_what_is_asked_during_a_cut_is_answered_afterwards(url: str) -> None:
    clock = FakeClock()
    with anyio.fail_after(10):
        async with node(url, "r1", clock) as one, anyio.create_task_group() as tasks:
            cut(url, one)
            tasks.start_soon(one.take, KEY)
            while not one.holds(KEY):
                await clock.advance(1_000)


async def test_a_session_with_a_run_that_has_no_end_is_taken_with_a_warning(url: str) -> None:
    clock = FakeClock()
    async with open_store(StoreSettings("postgres", url=url), clock) as store:
        runs = RunStore(store, clock)
        await runs.begin("run_1", b"d", session_key=KEY)
        with anyio.fail_after(10):
            async with node(url, "r1") as one:
                assert await one.attempt(KEY) == "ours_with_open_run"
                # Once it is held there is nothing more to be asked.
                assert await one.attempt(KEY) == "ours"
                assert await one.attempt("agent:other:main") == "ours"
                one.give(KEY)
                await runs.finalize("run_1", {"completed": {"ok": True}, "session_key": KEY})
                assert await one.attempt(KEY) == "ours"


async def test_many_keys_share_a_journey(url: str) -> None:
    keys = [f"agent:a{n}:main" for n in range(200)]
    with anyio.fail_after(10):
        async with node(url, "r1") as one, node(url, "r2") as two:
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(one.take, key)
            assert all(map(one.holds, keys))
            assert await two.attempt(keys[-1]) == "elsewhere"


async def test_a_name_is_one_process_and_is_watched(url: str, nodes: tuple[Store, Store]) -> None:
    alive = node_watch(nodes[0], "router")
    assert alive is not None
    with anyio.fail_after(10):
        async with node(url, "r1"):
            assert await alive("r1")
            with pytest.raises(NameTaken, match="router:r1"):
                async with node(url, "r1"):
                    pass


async def test_what_a_node_says_all_others_of_its_place_hear(
    url: str, postgres: PostgresServer
) -> None:
    heard: dict[str, list[str]] = {}
    with anyio.fail_after(10):
        async with (
            node(url, "r1") as one,
            node(url, "r2") as two,
            node(postgres.fresh_url(), "r3") as elsewhere,
        ):
            for name, locks in (("one", one), ("two", two), ("elsewhere", elsewhere)):
                locks.watch.told = heard.setdefault(name, []).append
            for text in ("a b  c", "größer"):
                one.tell(text)
            while len(heard["two"]) < 2:
                await anyio.lowlevel.checkpoint()
            for locks in (one, elsewhere):
                await locks.take(KEY)
            assert heard == {"one": [], "two": ["a b  c", "größer"], "elsewhere": []}
            with pytest.raises(ValueError, match="too many"):
                one.tell("x" * 7_001)


async def test_a_strangers_words_on_the_channel_change_nothing(url: str) -> None:
    with anyio.fail_after(10):
        async with node(url, "r1") as one:
            await one.take(KEY)
            with connect(url) as outside:
                for word in ("", "want", "want x", "free 1", "want -", "what is this", "tell 1 x"):
                    outside.execute("SELECT pg_notify('lemon_nodes', %s)", (word,))
            assert await one.attempt("agent:other:main") == "ours"
            assert one.holds(KEY)


async def test_a_store_of_one_node_has_no_locks() -> None:
    async with holding_sessions(Store(MemoryBackend()), "r1") as locks:
        assert locks is None
