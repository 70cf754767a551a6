"""The backends under test, by name, over a folder of the test."""

from __future__ import annotations

from pathlib import Path

from lemon_core.clock import Clock
from lemon_core.store import Store, StoreSettings, backend_for
from lemon_core.testing.postgres import PostgresServer

BACKENDS = ("memory", "sqlite", "postgres")


def settings(name: str, folder: Path, server: PostgresServer | None = None) -> StoreSettings:
    """Settings of an empty store called `name`, in `folder` or in a new place of `server`."""
    if name == "memory":
        return StoreSettings("memory")
    if name == "sqlite":
        return StoreSettings("sqlite", folder)
    assert server is not None, "the fixture `postgres` is the server"
    return StoreSettings("postgres", url=server.fresh_url())


def make_store(
    name: str, folder: Path, clock: Clock, server: PostgresServer | None = None
) -> Store:
    """A store that is not open yet."""
    return Store(backend_for(settings(name, folder, server), clock))
