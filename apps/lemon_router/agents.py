"""What other apps may do about agents: write to one, see its sessions, name its places.

A server registers one as the capability `agents`; apps that know this one use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from lemon_core.clock import Clock
from lemon_core.config.model import Profile
from lemon_core.store import RunStore, Store
from lemon_router.directory import Active, AgentInfo, AgentSession, Directory, Target
from lemon_router.endpoints import Endpoint, Endpoints
from lemon_router.inbox import LATEST, Address, Inbox, Letter, Sent, Submits
from lemon_router.policy import Caller
from lemon_router.submitting import HERE

AGENTS: Final = "agents"
"""The capability under which a server's `Agents` are found."""


class RouterOfAgents(Submits, Active, Protocol):
    """The part of the router that this stands on."""


class Agents:
    """The inbox, the directory and the endpoints of one router.

    Every method may raise `StoreError`; what cannot be read raises `Rejected` with its reason.
    """

    def __init__(
        self,
        router: RouterOfAgents,
        store: Store,
        runs: RunStore,
        profiles: Mapping[str, Profile],
        clock: Clock,
    ) -> None:
        self._directory = Directory(runs, router, profiles)
        self._endpoints = Endpoints(store, clock)
        self._inbox = Inbox(router, self._directory, self._endpoints, clock)

    async def send_to_agent(self, letter: Letter, caller: Caller = HERE) -> Sent:
        """Submit a message to one of the agent's sessions."""
        return await self._inbox.send(letter, caller)

    async def resolve_agent_session(
        self, agent_id: str, session: object = LATEST, to: object = None
    ) -> Address:
        """The session that such a message would go to."""
        return await self._inbox.resolve(agent_id, session, to)

    async def list_agent_directory(self) -> list[AgentInfo]:
        """Every agent, with counts of its sessions."""
        return await self._directory.list_agents()

    async def list_agent_sessions(
        self, agent_id: str | None = None, to: object = None, limit: int | None = None
    ) -> list[AgentSession]:
        """Sessions, active ones first; of one agent, at one place."""
        route = None if to is None else await self._endpoints.resolve(agent_id or "default", to)
        return await self._directory.list_sessions(agent_id, route, limit)

    async def latest_session(self, agent_id: str, to: object = None) -> str | None:
        """The agent's session that was used last, at one place or at any."""
        route = None if to is None else await self._endpoints.resolve(agent_id, to)
        return await self._directory.latest_session(agent_id, route)

    async def latest_route_session(self, agent_id: str) -> AgentSession | None:
        """The agent's session that was used last of those that are somewhere."""
        return await self._directory.latest_route_session(agent_id)

    async def list_agent_targets(
        self,
        query: str | None = None,
        *,
        channel_id: str | None = None,
        account_id: str | None = None,
        agent_id: str | None = None,
        limit: int | None = None,
    ) -> list[Target]:
        """The places of sessions."""
        return await self._directory.list_targets(
            query, channel_id=channel_id, account_id=account_id, agent_id=agent_id, limit=limit
        )

    async def list_agent_endpoints(
        self, agent_id: str | None = None, limit: int | None = None
    ) -> list[Endpoint]:
        """The names that places have."""
        return await self._endpoints.list(agent_id, limit)

    async def set_agent_endpoint(
        self, agent_id: str, name: str, target: object, description: str | None = None
    ) -> Endpoint:
        """Name a place."""
        return await self._endpoints.set(agent_id, name, target, description)

    async def delete_agent_endpoint(self, agent_id: str, name: str) -> bool:
        """Forget the name of a place; False when there was none."""
        return await self._endpoints.delete(agent_id, name)
