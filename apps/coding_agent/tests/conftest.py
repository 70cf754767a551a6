"""Everything asynchronous in these tests runs on asyncio."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The one backend Lemon supports."""
    return "asyncio"


@pytest.fixture(autouse=True)
def restored_tree() -> Iterator[None]:
    """Boot configures the process's logger tree; other tests want it as it was."""
    root = logging.getLogger("lemon")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
