"""Who is alive among the nodes of a shared store: locks that end with a node's connection.

A node holds a session-level advisory lock under its name, on a connection of its own. The database
frees it when that connection dies, so a free lock says that the node is gone; nothing is ever taken
from a node because of its age.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import psycopg
from anyio.abc import TaskStatus
from psycopg import AsyncConnection

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.errors import StoreError
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.store.postgres_links import Link
from lemon_core.util import capped_backoff

log = get_logger("lemon_core.store.advisory")

CONNECT_S: Final = 5.0
RETRY_BASE_MS: Final = 200
RETRY_MAX_MS: Final = 5_000

# The lock's number holds the place of the tables: two stores in one database are two worlds.
_PLACE: Final = "SELECT current_database() || '.' || current_schema()"
_TRY: Final = "SELECT pg_try_advisory_lock(%(number)s)"
_HELD: Final = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype='advisory' AND granted AND objsubid=1"
    # Whoever asks whether a node is dead shares its lock for a moment (`node_locks`).
    " AND mode='ExclusiveLock'"
    " AND database=(SELECT oid FROM pg_database WHERE datname=current_database())"
    " AND ((classid::bigint << 32) | objid::bigint)=%(number)s)"
)


class NameTaken(StoreError):
    """Another process holds the lock of this name."""

    code = "node_name_taken"

    def __init__(self, name: str, label: str) -> None:
        super().__init__(
            f"{label}: {name!r} is running on this store already: give this node a name of its own "
            "(node_id in [gateway.rpc], or LEMON_NODE_NAME)"
        )
        self.name = name


@asynccontextmanager
async def holding(address: PostgresAddress, name: str, clock: Clock) -> AsyncIterator[None]:
    """The lock of `name` for the block; a connection that dies is made again.

    Raises `NameTaken` and `StoreUnavailable`.
    """
    failures: list[StoreError] = []
    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(_hold, address, name, clock, failures)
            if not failures:
                yield
        finally:
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def is_held(link: Link, name: str) -> bool:
    """True while somebody holds the lock of `name`."""
    number = lock_number(await place_of(link), name)
    row = await (await link.execute(_HELD, {"number": number})).fetchone()
    return row is not None and row[0] is True


async def _hold(
    address: PostgresAddress,
    name: str,
    clock: Clock,
    failures: list[StoreError],
    *,
    task_status: TaskStatus[None],
) -> None:
    started, attempt = False, 0
    while True:
        try:
            async with locked(address, name) as link:
                attempt = 0
                if not started:
                    started = True
                    task_status.started()
                # Nothing is asked on this connection, so what comes is its end.
                await anyio.wait_readable(link.fileno())
        except StoreError as exc:
            if not started:
                failures.append(exc)
                task_status.started()
                return
            log.warning("advisory.not_held", name=name, error=str(exc))
        await clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
        attempt += 1


@asynccontextmanager
async def locked(address: PostgresAddress, name: str) -> AsyncIterator[Link]:
    """A connection that holds the lock of `name`, which ends with it.

    Raises `NameTaken` and `StoreError`.
    """
    try:
        with anyio.fail_after(CONNECT_S):
            link: Link = await AsyncConnection.connect(address.conninfo, autocommit=True)
    except psycopg.Error as exc:
        raise address.unreachable(exc) from exc
    except TimeoutError as exc:
        raise StoreError(f"{address.label}: the server did not answer") from exc
    try:
        try:
            if link.info.server_version >= 140_000:
                # An idle connection is what this one is for.
                await link.execute("SET idle_session_timeout = 0")
            number = lock_number(await place_of(link), name)
            row = await (await link.execute(_TRY, {"number": number})).fetchone()
        except psycopg.Error as exc:
            raise address.translate(exc, writing=False) from exc
        if row is None or row[0] is not True:
            raise NameTaken(name, address.label)
        yield link
    finally:
        with anyio.CancelScope(shield=True):
            await link.close()


async def place_of(link: Link) -> str:
    """Where the tables of this connection are."""
    row = await (await link.execute(_PLACE)).fetchone()
    return "" if row is None else str(row[0])


def lock_number(place: str, name: str) -> int:
    """The number of the lock of `name` among the tables at `place`."""
    digest = hashlib.sha256(f"lemon\0{place}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
