"""Who is alive among the nodes of a shared store (ruling 16)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.nodes import holding_node, node_watch
from lemon_core.store import Store
from lemon_core.store.advisory import NameTaken
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.postgres import PostgresBackend
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.tests.store.nodes import connect

pytestmark = pytest.mark.anyio


async def test_a_node_is_held_until_it_lets_go(nodes: tuple[Store, Store]) -> None:
    one, two = nodes
    alive = node_watch(two)
    assert alive is not None
    with anyio.fail_after(10):
        assert not await alive("n1")
        async with holding_node(one, "n1"):
            assert await alive("n1")
            assert not await alive("n2")
        while await alive("n1"):  # the server ends the session in its own time
            await anyio.lowlevel.checkpoint()


async def test_one_name_is_one_process(nodes: tuple[Store, Store]) -> None:
    one, two = nodes
    with anyio.fail_after(10):
        async with holding_node(one, "n1"), holding_node(two, "n2"):
            with pytest.raises(NameTaken, match="'gateway:n1' is running on this store already"):
                async with holding_node(two, "n1"):
                    pass


async def test_a_connection_that_dies_is_made_again(nodes: tuple[Store, Store], url: str) -> None:
    alive = node_watch(nodes[0])
    assert alive is not None
    # Its clock waits for real before it connects again.
    one = Store(PostgresBackend(PostgresAddress.parse(url), SystemClock()))
    with anyio.fail_after(10):
        async with holding_node(one, "n1"):
            with connect(url) as outside:
                killed = outside.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype='advisory'"
                ).fetchall()
            assert killed
            while not await alive("n1"):
                await anyio.lowlevel.checkpoint()


async def test_a_store_of_one_node_has_no_watch() -> None:
    store = Store(MemoryBackend())
    assert node_watch(store) is None
    async with holding_node(store, "n1"):
        pass
