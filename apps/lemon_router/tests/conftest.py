"""Fixtures of lemon_router's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Lemon runs on asyncio only (grpc.aio needs it)."""
    return "asyncio"
