"""Fixtures of lemon_router's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lemon_core.testing.postgres import PostgresServer, postgres_server


@pytest.fixture
def anyio_backend() -> str:
    """Lemon runs on asyncio only (grpc.aio needs it)."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; each test takes a place of its own there.

    A test file that uses it is named in BUILD.bazel: it cannot run in the sandbox.
    """
    with postgres_server() as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A new, empty place on the server."""
    return postgres.fresh_url()
