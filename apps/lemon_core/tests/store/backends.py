"""The backends under test, by name, over a folder of the test."""

from __future__ import annotations

from pathlib import Path

from lemon_core.clock import Clock
from lemon_core.store import Store, StoreSettings, backend_for

BACKENDS = ("memory", "sqlite")


def settings(name: str, folder: Path) -> StoreSettings:
    """Settings of the backend called `name`."""
    return StoreSettings("memory") if name == "memory" else StoreSettings("sqlite", folder)


def make_store(name: str, folder: Path, clock: Clock) -> Store:
    """A store that is not open yet."""
    return Store(backend_for(settings(name, folder), clock))
