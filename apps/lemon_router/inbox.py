"""Messages to an agent: which of its sessions one goes to, and where the answer is shown."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, Protocol

from lemon_core import session_key as session_keys
from lemon_core.bridges import SubmitResult
from lemon_core.clock import Clock
from lemon_core.runs import QueueMode
from lemon_router.directory import Directory
from lemon_router.endpoints import Endpoints
from lemon_router.errors import Rejected
from lemon_router.inbound import number
from lemon_router.policy import Caller
from lemon_router.routes import TELEGRAM, InvalidTarget, Route, route_of

LATEST: Final = "latest"
NEW: Final = "new"
ResolvedFrom = Literal["latest_session", "route", "main", "new", "session_key"]


class Submits(Protocol):
    """The part of the router that takes messages."""

    async def submit(self, request: Mapping[str, object], caller: Caller) -> SubmitResult:
        """Take a message."""


@dataclass(frozen=True, slots=True)
class Address:
    """The session that a message goes to, and how it was found.

    `route` is the place that the answer is for, `route_session_key` the agent's session there.
    """

    session_key: str
    selector: str
    resolved_from: ResolvedFrom
    route: Route | None = None
    route_session_key: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message; `submitted` tells whether it was taken."""

    run_id: str | None
    session_key: str
    selector: str
    fanout_count: int
    submitted: SubmitResult


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to an agent.

    `session` is `latest`, `new` or a session's key; `to` a place or the name of one; `deliver_to`
    more places that are shown the answer. The optional fields are those of a request.
    """

    agent_id: str
    prompt: str
    session: object = LATEST
    to: object = None
    deliver_to: Sequence[object] = ()
    queue_mode: QueueMode = "followup"
    model: str | None = None
    cwd: str | None = None
    tool_policy: Mapping[str, object] | None = None
    meta: Mapping[str, object] | None = None
    source: str | None = None


class Inbox:
    """Finds the session of a letter and submits it."""

    def __init__(
        self, router: Submits, directory: Directory, endpoints: Endpoints, clock: Clock
    ) -> None:
        self._router, self._directory = router, directory
        self._endpoints, self._clock = endpoints, clock

    async def send(self, letter: Letter, caller: Caller) -> Sent:
        """Submit `letter`; raises `Rejected` for what names no session or no place."""
        if not letter.prompt.strip():
            raise Rejected("empty_prompt", "the message is empty")
        address = await self.resolve(letter.agent_id, letter.session, letter.to)
        fanout = await self._fanout(letter, address.route)
        request: dict[str, object] = {
            "origin": "control_plane" if address.route is None else "channel",
            "session_key": address.session_key,
            "agent_id": letter.agent_id,
            "prompt": letter.prompt,
            "queue_mode": letter.queue_mode,
            "model": letter.model,
            "cwd": letter.cwd,
            "tool_policy": letter.tool_policy,
            "meta": self._meta(letter, address, fanout),
        }
        result = await self._router.submit(request, caller)
        return Sent(result.run_id, address.session_key, address.selector, len(fanout), result)

    async def resolve(self, agent_id: str, session: object = LATEST, to: object = None) -> Address:
        """The session that a letter to the agent would go to; raises `Rejected`."""
        try:
            main = session_keys.main(agent_id)
        except session_keys.InvalidSessionKey as exc:
            raise Rejected("unknown_agent_id", f"no agent is called {agent_id!r}") from exc
        route = None if to is None else await self._endpoints.resolve(agent_id, to)
        if session not in (LATEST, NEW):
            return self._named(agent_id, session, route)
        placed = None if route is None else route.session_key(agent_id)
        if session == NEW:
            sub = f"inbox_{uuid.uuid4().hex[:8]}"
            key = (
                session_keys.main(agent_id, sub_id=sub)
                if route is None
                else route.session_key(agent_id, sub_id=sub)
            )
            return Address(key, NEW, "new", route, placed)
        latest = await self._directory.latest_session(agent_id, route)
        if latest is not None:
            return Address(latest, LATEST, "latest_session", route or route_of(latest), placed)
        if placed is not None:
            return Address(placed, LATEST, "route", route, placed)
        return Address(main, LATEST, "main")

    @staticmethod
    def _named(agent_id: str, session: object, route: Route | None) -> Address:
        if not isinstance(session, str) or not session.startswith("agent:"):
            raise Rejected(
                "invalid_session_selector", f"{session!r}: use latest, new or a session's key"
            )
        actual = session_keys.agent_id(session)
        if actual is None:
            raise Rejected("invalid_session_key", f"{session!r} is not a session key")
        if actual != agent_id:
            raise Rejected(
                "session_agent_mismatch",
                f"session {session} belongs to agent {actual}, not to {agent_id}",
                {"expected": agent_id, "actual": actual},
            )
        placed = None if route is None else route.session_key(agent_id)
        return Address(session, session, "session_key", route or route_of(session), placed)

    async def _fanout(self, letter: Letter, primary: Route | None) -> list[Route]:
        """The further places, each once and without the first."""
        routes: dict[Route, None] = {}
        for item in letter.deliver_to:
            try:
                routes[await self._endpoints.resolve(letter.agent_id, item)] = None
            except InvalidTarget as exc:
                detail = {"item": item, "reason": exc.reason}
                raise Rejected("invalid_fanout_target", str(exc), detail) from exc
        return [route for route in routes if route != primary]

    def _meta(self, letter: Letter, address: Address, fanout: Sequence[Route]) -> dict[str, object]:
        meta = dict(letter.meta or {})
        if address.route is not None:
            meta.update(_place_meta(address.route))
        meta.update(
            fanout_routes=[asdict(route) for route in fanout],
            agent_inbox_message=True,
            agent_inbox_followup=letter.queue_mode == "followup",
            agent_inbox={
                "source": letter.source,
                "selector": address.selector,
                "resolved_from": address.resolved_from,
                "resolved_session_key": address.session_key,
                "route_session_key": address.route_session_key,
                "target": None if address.route is None else address.route.target,
                "queue_mode": letter.queue_mode,
                "fanout_targets": [route.target for route in fanout],
                "requested_at_ms": self._clock.now_ms(),
            },
        )
        return meta


def _place_meta(route: Route) -> dict[str, object]:
    """What a channel's own messages say of their place."""
    peer = {"kind": route.peer_kind, "id": route.peer_id, "thread_id": route.thread_id}
    ids = {"channel_id": route.channel_id, "account_id": route.account_id}
    meta: dict[str, object] = {**ids, "peer": peer, "channel_context": {**ids, "peer": peer}}
    if route.channel_id == TELEGRAM:
        meta["chat_id"] = number(route.peer_id)
        if route.thread_id is not None:
            meta["topic_id"] = number(route.thread_id)
    return meta
