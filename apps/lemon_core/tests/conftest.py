"""Fixtures of lemon_core's own tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lemon_core.logs import ROOT
from lemon_core.store import StoreSettings
from lemon_core.testing.postgres import PostgresServer, postgres_server
from lemon_core.tests.store.backends import BACKENDS, settings


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


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    name: str = request.param
    return name


@pytest.fixture
def server_of_backend(request: pytest.FixtureRequest, backend_name: str) -> PostgresServer | None:
    """The server, started only for a test that runs on it."""
    if backend_name != "postgres":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server


@pytest.fixture
def backend_settings(
    backend_name: str, tmp_path: Path, server_of_backend: PostgresServer | None
) -> StoreSettings:
    """Settings of an empty store on `backend_name`."""
    return settings(backend_name, tmp_path, server_of_backend)


@pytest.fixture(autouse=True)
def restored_tree() -> Iterator[None]:
    """The process's logger tree is after each test what it was before: a boot configures it."""
    root = logging.getLogger(ROOT)
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
