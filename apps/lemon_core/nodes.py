"""Gateways and routers of a shared store as living processes: taking part, telling who is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Literal, Protocol, cast

import anyio

from lemon_core.store import Store, StoreError

if TYPE_CHECKING:
    from lemon_core.store.node_locks import NodeLocks

NodeKind = Literal["gateway", "router"]


class SharedBackend(Protocol):
    """What a store's backend has when several nodes share it (`PostgresBackend`)."""

    def holding(self, name: str) -> AbstractAsyncContextManager[None]:
        """The lock of `name` for the block."""

    async def is_held(self, name: str) -> bool:
        """True while a living process holds the lock of `name`."""

    def node_locks(self, kind: str, node_id: str) -> NodeLocks:
        """The locks of one node."""


@asynccontextmanager
async def holding_node(store: Store, node_id: str) -> AsyncIterator[None]:
    """This process as the gateway `node_id` for the block; nothing without a shared store.

    Raises `NameTaken` when another process is that node, and `StoreUnavailable`.
    """
    if not store.shared:
        yield
        return
    async with _backend(store).holding(_name("gateway", node_id)):
        yield


def node_watch(store: Store, kind: NodeKind = "gateway") -> Callable[[str], Awaitable[bool]] | None:
    """What tells whether a node's process lives; None where nobody can know.

    It raises `StoreError` when it cannot tell now.
    """
    if not store.shared:
        return None
    backend = _backend(store)
    return lambda node_id: backend.is_held(_name(kind, node_id))


@asynccontextmanager
async def holding_sessions(store: Store, node_id: str) -> AsyncIterator[NodeLocks | None]:
    """This process as the router `node_id`, and the sessions it holds; None without a shared store.

    Raises `NameTaken` and `StoreUnavailable` as `holding_node` does.
    """
    if not store.shared:
        yield None
        return
    locks = _backend(store).node_locks("router", node_id)
    async with anyio.create_task_group() as tasks:
        failure: StoreError | None = await tasks.start(locks.serve)
        if failure is None:
            yield locks
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _backend(store: Store) -> SharedBackend:
    # That is what `shared` says of a backend.
    return cast(SharedBackend, store.backend)


def _name(kind: NodeKind, node_id: str) -> str:
    return f"{kind}:{node_id}"
