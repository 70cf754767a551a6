"""Gateways and routers of a shared store as living processes: taking part, telling who is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

from lemon_core.store import Store

NodeKind = Literal["gateway", "router"]


@asynccontextmanager
async def holding_node(
    store: Store, node_id: str, kind: NodeKind = "gateway"
) -> AsyncIterator[None]:
    """This process as the node `node_id` for the block; nothing without a shared store.

    Raises `NameTaken` when another process is that node, and `StoreUnavailable`.
    """
    if not store.shared:
        yield
        return
    from lemon_core.store.postgres import PostgresBackend  # psycopg is for shared stores only

    assert isinstance(store.backend, PostgresBackend)
    async with store.backend.holding(_name(kind, node_id)):
        yield


def node_watch(store: Store, kind: NodeKind = "gateway") -> Callable[[str], Awaitable[bool]] | None:
    """What tells whether a node's process lives; None where nobody can know.

    It raises `StoreError` when it cannot tell now.
    """
    if not store.shared:
        return None
    from lemon_core.store.postgres import PostgresBackend  # as above

    backend = store.backend
    assert isinstance(backend, PostgresBackend)
    return lambda node_id: backend.is_held(_name(kind, node_id))


def _name(kind: NodeKind, node_id: str) -> str:
    return f"{kind}:{node_id}"
