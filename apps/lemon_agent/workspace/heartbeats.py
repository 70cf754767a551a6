"""Settings and last results of agents' heartbeats, by agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from lemon_core.store.errors import StoreCorrupt

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime
    from lemon_core.store import Store

Kind = Literal["config", "last"]
TABLES: Final[Mapping[Kind, str]] = {"config": "heartbeat_config", "last": "heartbeat_last"}


class HeartbeatStore:
    """Plain maps: what is in them belongs to whoever runs the heartbeats."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def of(cls, runtime: Runtime) -> HeartbeatStore:
        """The heartbeats of a runtime, for `runtime.service`."""
        return cls(runtime.store)

    async def get(self, kind: Kind, agent_id: str) -> dict[str, Any] | None:
        """The agent's map."""
        value = await self._store.load(TABLES[kind], agent_id)
        return None if value is None else _map(kind, agent_id, value)

    async def put(self, kind: Kind, agent_id: str, value: Mapping[str, Any]) -> None:
        """Replace the agent's map."""
        await self._store.put(TABLES[kind], agent_id, dict(value))

    async def delete(self, kind: Kind, agent_id: str) -> None:
        """Forget the agent's map."""
        await self._store.delete(TABLES[kind], agent_id)

    async def list(self, kind: Kind) -> dict[str, dict[str, Any]]:
        """Every agent's map."""
        rows = await self._store.load_all(TABLES[kind])
        return {str(key): _map(kind, str(key), value) for key, value in rows}


def _map(kind: Kind, agent_id: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StoreCorrupt(f"{TABLES[kind]} of {agent_id} is no map")
    return value
