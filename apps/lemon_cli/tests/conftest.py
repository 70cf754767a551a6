"""Fixtures of lemon_cli's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lemon_cli.tests.home import Home
from lemon_core.testing import temp_home


@pytest.fixture
def anyio_backend() -> str:
    """Lemon runs on asyncio only (grpc.aio needs it)."""
    return "asyncio"


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty home."""
    with temp_home() as paths:
        yield Home(paths)
