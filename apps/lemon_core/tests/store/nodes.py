"""Nodes on one PostgreSQL database, and somebody else beside them."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from lemon_core.store import Store
from lemon_core.store.postgres import PostgresBackend
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.testing import FakeClock


@dataclass
class Node:
    """A node's store on the database at `url`."""

    url: str
    timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        address = PostgresAddress.parse(self.url)
        self.backend = PostgresBackend(address, FakeClock(), timeout_ms=self.timeout_ms)
        self.store = Store(self.backend)


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Somebody else's session."""
    return psycopg.connect(url, autocommit=True)
