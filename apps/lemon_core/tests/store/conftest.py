"""An open store over each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.testing import FakeClock
from lemon_core.testing.postgres import PostgresServer
from lemon_core.tests.store.nodes import Node


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
async def store(backend_settings: StoreSettings, clock: FakeClock) -> AsyncIterator[Store]:
    """An open store over each backend."""
    async with open_store(backend_settings, clock) as opened:
        yield opened


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A new, empty place on the server."""
    return postgres.fresh_url()


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[tuple[Store, Store]]:
    """Two nodes on one database, which open it for the first time, at once."""
    one, two = Node(url).store, Node(url).store
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.open)
            tasks.start_soon(two.open)
    yield one, two
    await one.close()
    await two.close()
