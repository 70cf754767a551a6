"""Which sessions, agents and places there are: what is stored, and what goes on now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lemon_core import session_key as session_keys
from lemon_core.config.model import Profile
from lemon_core.store import SessionEntry
from lemon_router.admission import Admission
from lemon_router.routes import Route, route_of


class Sessions(Protocol):
    """The stored sessions (core's `RunStore`)."""

    async def list_sessions(
        self, *, agent_id: str | None = ..., limit: int | None = ...
    ) -> list[SessionEntry]:
        """Sessions that had a run."""


class Active(Protocol):
    """The part of the router that knows what goes on."""

    def live_records(self) -> list[Admission]:
        """The records of runs that have not ended."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One session of an agent; `active_run_id` is set while it works."""

    session_key: str
    agent_id: str
    route: Route | None
    target: str | None
    active_run_id: str | None
    origin: str | None
    run_count: int
    created_at_ms: int
    updated_at_ms: int

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sorts active sessions last, and then the one used last."""
        return self.active_run_id is not None, self.updated_at_ms, self.session_key


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """One agent and how much it has to do."""

    agent_id: str
    name: str
    description: str | None
    latest_session_key: str | None
    latest_updated_at_ms: int | None
    active_session_count: int
    session_count: int
    route_count: int


@dataclass(frozen=True, slots=True)
class Target:
    """A place that some session is at; `agent_ids` are the agents there."""

    route: Route
    target: str
    label: str
    agent_ids: tuple[str, ...]
    updated_at_ms: int


class Directory:
    """Answers from the store and the running router; its methods raise `StoreError`."""

    def __init__(self, sessions: Sessions, active: Active, profiles: Mapping[str, Profile]) -> None:
        self._sessions, self._active, self._profiles = sessions, active, profiles

    async def list_sessions(
        self, agent_id: str | None = None, route: Route | None = None, limit: int | None = None
    ) -> list[AgentSession]:
        """Sessions of one agent or of all, at one place or at any: active ones first, then the
        one used last."""
        found = {
            session.session_key: session
            for entry in await self._sessions.list_sessions()
            if (session := _stored(entry)) is not None
        }
        for record in self._active.live_records():
            key = record.session_key
            found[key] = _with_run(found.get(key), record)
        kept = [
            session
            for session in found.values()
            if agent_id in (None, session.agent_id) and route in (None, session.route)
        ]
        return sorted(kept, key=lambda session: session.order, reverse=True)[:limit]

    async def latest_session(self, agent_id: str, route: Route | None = None) -> str | None:
        """The session of the agent that was used last, at one place or at any."""
        sessions = await self.list_sessions(agent_id, route)
        newest = max(sessions, key=lambda s: (s.updated_at_ms, s.session_key), default=None)
        return None if newest is None else newest.session_key

    async def latest_route_session(self, agent_id: str) -> AgentSession | None:
        """The agent's session that was used last of those that are somewhere."""
        placed = [s for s in await self.list_sessions(agent_id) if s.route is not None]
        return max(placed, key=lambda s: (s.updated_at_ms, s.session_key), default=None)

    async def list_agents(self) -> list[AgentInfo]:
        """Every configured agent, and every one that has a session, by its id."""
        sessions = await self.list_sessions()
        known = {*self._profiles, *(session.agent_id for session in sessions)}
        return [
            _agent(agent_id, self._profiles.get(agent_id), sessions) for agent_id in sorted(known)
        ]

    async def list_targets(
        self,
        query: str | None = None,
        *,
        channel_id: str | None = None,
        account_id: str | None = None,
        agent_id: str | None = None,
        limit: int | None = None,
    ) -> list[Target]:
        """The places of all sessions, the one used last first; `query` is part of what is shown."""
        targets: dict[Route, Target] = {}
        for session in await self.list_sessions(agent_id):
            if session.route is not None:
                targets[session.route] = _target(session.route, session, targets)
        words = (query or "").casefold()
        kept = [
            target
            for target in targets.values()
            if channel_id in (None, target.route.channel_id)
            and account_id in (None, target.route.account_id)
            and (words in target.label.casefold() or words in target.target.casefold())
        ]
        return sorted(kept, key=lambda t: (t.updated_at_ms, t.target), reverse=True)[:limit]


def _stored(entry: SessionEntry) -> AgentSession | None:
    if not session_keys.is_valid(entry.session_key):
        return None
    agent_id = entry.agent_id or session_keys.agent_id(entry.session_key) or "default"
    route = route_of(entry.session_key)
    return AgentSession(
        session_key=entry.session_key,
        agent_id=agent_id,
        route=route,
        target=None if route is None else route.target,
        active_run_id=None,
        origin=entry.origin,
        run_count=entry.run_count,
        created_at_ms=entry.created_at_ms,
        updated_at_ms=entry.updated_at_ms,
    )


def _with_run(stored: AgentSession | None, record: Admission) -> AgentSession:
    """The session with what the router knows of its run."""
    if stored is None:
        route = route_of(record.session_key)
        stored = AgentSession(
            session_key=record.session_key,
            agent_id=record.agent_id or session_keys.agent_id(record.session_key) or "default",
            route=route,
            target=None if route is None else route.target,
            active_run_id=None,
            origin=record.origin,
            run_count=0,
            created_at_ms=record.created_at_ms,
            updated_at_ms=record.updated_at_ms,
        )
    works = record.state in ("started", "submitted")
    return replace(
        stored,
        active_run_id=record.run_id if works else stored.active_run_id,
        updated_at_ms=max(stored.updated_at_ms, record.updated_at_ms),
    )


def _agent(agent_id: str, profile: Profile | None, sessions: Sequence[AgentSession]) -> AgentInfo:
    own = [session for session in sessions if session.agent_id == agent_id]
    latest = max(own, key=lambda s: (s.updated_at_ms, s.session_key), default=None)
    return AgentInfo(
        agent_id=agent_id,
        name=agent_id if profile is None or profile.name is None else profile.name,
        description=None if profile is None else profile.description,
        latest_session_key=None if latest is None else latest.session_key,
        latest_updated_at_ms=None if latest is None else latest.updated_at_ms,
        active_session_count=sum(1 for s in own if s.active_run_id is not None),
        session_count=len(own),
        route_count=len({s.route for s in own if s.route is not None}),
    )


def _target(route: Route, session: AgentSession, known: Mapping[Route, Target]) -> Target:
    former = known.get(route)
    agents = {session.agent_id} if former is None else {*former.agent_ids, session.agent_id}
    used = session.updated_at_ms if former is None else former.updated_at_ms
    return Target(
        route=route,
        target=route.target,
        label=f"{route.peer_id} / {route.thread_id}" if route.thread_id else route.peer_id,
        agent_ids=tuple(sorted(agents)),
        updated_at_ms=max(used, session.updated_at_ms),
    )
