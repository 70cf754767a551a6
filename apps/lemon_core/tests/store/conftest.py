"""An open store over each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lemon_core.store import Store
from lemon_core.testing import FakeClock
from lemon_core.tests.store.backends import BACKENDS, make_store


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    name: str = request.param
    return name


@pytest.fixture
async def store(backend_name: str, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    """An open store over `backend_name`."""
    opened = make_store(backend_name, tmp_path, clock)
    await opened.open()
    yield opened
    await opened.close()
