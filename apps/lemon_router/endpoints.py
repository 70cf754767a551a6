"""Names for places: an agent's own word for a chat that it writes to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from lemon_core import ids
from lemon_core.clock import Clock
from lemon_core.store import Store, StoreCorrupt
from lemon_core.store.rows import parse_row
from lemon_router.routes import InvalidTarget, Route, parse_route

TABLE: Final = "agent_endpoints"
_FOREIGN: Final = re.compile(r"[^a-z0-9._:-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One name of an agent for a place, and the agent's session there."""

    id: str
    agent_id: str
    name: str
    description: str | None
    route: Route
    target: str
    session_key: str
    created_at_ms: int
    updated_at_ms: int


def endpoint_name(name: object) -> str:
    """`name` as it is stored: lower case, and a dash for what names do not have.

    Raises `InvalidTarget`.
    """
    text = _FOREIGN.sub("-", name.strip().lower()) if isinstance(name, str) else ""
    if not text.strip("-"):
        raise InvalidTarget("invalid_name", name)
    return text


class Endpoints:
    """The table `agent_endpoints`; its methods raise `StoreError`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def set(
        self, agent_id: str, name: str, target: object, description: str | None = None
    ) -> Endpoint:
        """Give a place a name, or a name another place; raises `InvalidTarget`.

        `target` may itself be a name of the agent.
        """
        alias = endpoint_name(name)
        route = await self.resolve(agent_id, target)
        now, former = self._clock.now_ms(), await self.get(agent_id, alias)
        endpoint = Endpoint(
            id=f"ep_{ids.new_uuid()}" if former is None else former.id,
            agent_id=agent_id,
            name=alias,
            description=description,
            route=route,
            target=route.target,
            session_key=route.session_key(agent_id),
            created_at_ms=now if former is None else former.created_at_ms,
            updated_at_ms=now,
        )
        await self._store.put(TABLE, (agent_id, alias), asdict(endpoint))
        return endpoint

    async def get(self, agent_id: str, name: str) -> Endpoint | None:
        """The place of a name."""
        value = await self._store.load(TABLE, (agent_id, endpoint_name(name)))
        return None if value is None else _endpoint(value)

    async def delete(self, agent_id: str, name: str) -> bool:
        """Forget a name; False when there was none."""
        return await self._store.take(TABLE, (agent_id, endpoint_name(name))) is not None

    async def list(self, agent_id: str | None = None, limit: int | None = None) -> list[Endpoint]:
        """The names of one agent or of all, by agent and name."""
        found = [_endpoint(value) for _, value in await self._store.load_all(TABLE)]
        kept = [endpoint for endpoint in found if agent_id in (None, endpoint.agent_id)]
        return sorted(kept, key=lambda endpoint: (endpoint.agent_id, endpoint.name))[:limit]

    async def resolve(self, agent_id: str, target: object) -> Route:
        """The place that `target` means to the agent: a name of it, else how a place is written.

        Raises `InvalidTarget`.
        """
        if isinstance(target, str) and target.strip(" -"):
            known = await self.get(agent_id, target)
            if known is not None:
                return known.route
        return parse_route(target)


def _endpoint(value: object) -> Endpoint:
    if not isinstance(value, Mapping):
        raise StoreCorrupt("a stored endpoint is not a table")
    return parse_row(Endpoint, value, f"endpoint {value.get('name')}")
