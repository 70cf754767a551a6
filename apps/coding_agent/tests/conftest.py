"""Everything asynchronous in these tests runs on asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The one backend Lemon supports."""
    return "asyncio"
