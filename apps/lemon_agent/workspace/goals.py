"""The goal of each session: what an agent works towards by itself, and how its loop is doing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from lemon_agent.workspace.goal_loop import LOOP_ACTIONS, LoopState, valid_options
from lemon_agent.workspace.records import (
    InvalidInput,
    as_row,
    change,
    records,
    short_hash,
)
from lemon_core import session_key as session_keys
from lemon_core.bus import session_topic
from lemon_core.store.rows import parse_row

if TYPE_CHECKING:
    from lemon_core.bus import Bus
    from lemon_core.clock import Clock
    from lemon_core.introspection import Introspection
    from lemon_core.runtime import Runtime
    from lemon_core.store import Store

GOALS: Final = "goals"
TOPIC: Final = "goals"

GoalStatus = Literal["active", "paused", "completed"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A session's goal. `budget` may hold `max_continuations`; the loop's data is in `meta`."""

    id: str
    session_key: str
    agent_id: str
    objective: str = field(repr=False)
    status: GoalStatus
    created_at_ms: int
    updated_at_ms: int
    paused_at_ms: int | None = None
    completed_at_ms: int | None = None
    last_run_id: str | None = None
    continuation_count: int = 0
    budget: dict[str, int] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def loop(self) -> LoopState:
        """How the goal's loop is doing."""
        return LoopState.of(self.meta)


class GoalStore:
    """One goal per session key. Changes are published on `goals` and on the session's topic, and
    recorded for introspection, without the objective's text."""

    def __init__(self, store: Store, clock: Clock, bus: Bus, introspection: Introspection) -> None:
        self._store, self._clock = store, clock
        self._bus, self._introspection = bus, introspection

    @classmethod
    def of(cls, runtime: Runtime) -> GoalStore:
        """The goals of a runtime, for `runtime.service`."""
        return cls(runtime.store, runtime.clock, runtime.bus, runtime.introspection)

    async def set(
        self,
        session_key: str,
        objective: str,
        *,
        agent_id: str | None = None,
        max_continuations: int | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Goal:
        """Give the session this goal and make it active.

        A session that has one keeps its id, its age and its count. Raises `InvalidInput` with
        `invalid_session_key` or `empty_objective`.
        """
        agent = session_keys.agent_id(session_key)
        if agent is None:
            raise InvalidInput("invalid_session_key", f"{session_key!r} is no session key")
        if not objective.strip():
            raise InvalidInput("empty_objective", "a goal needs an objective")
        now = self._clock.now_ms()
        budget = {} if max_continuations is None else {"max_continuations": max_continuations}
        while True:
            stored = await self._store.load(GOALS, session_key)
            fresh = Goal(
                id=f"goal_{os.urandom(8).hex()}",
                session_key=session_key,
                agent_id=agent_id or agent,
                objective=objective.strip(),
                status="active",
                created_at_ms=now,
                updated_at_ms=now,
                budget=budget,
                meta=dict(meta or {}),
            )
            goal = fresh if stored is None else _renewed(_goal(session_key, stored), fresh)
            if await self._written(session_key, stored, goal):
                self._tell("goal_set", goal)
                return goal

    async def get(self, session_key: str) -> Goal | None:
        """The session's goal."""
        stored = await self._store.load(GOALS, session_key)
        return None if stored is None else _goal(session_key, stored)

    async def list(
        self, *, status: GoalStatus | None = None, agent_id: str | None = None, limit: int = 50
    ) -> list[Goal]:
        """Goals by status and agent, the last changed first."""
        found = [
            goal
            for goal in await records(self._store, GOALS, Goal)
            if status in (None, goal.status) and agent_id in (None, goal.agent_id)
        ]
        found.sort(key=lambda goal: (goal.updated_at_ms, goal.id), reverse=True)
        return found[: max(limit, 0)]

    async def pause(self, session_key: str) -> Goal:
        """Stop working towards it for now. Raises `NotFound`, as all changes do."""
        now = self._clock.now_ms()
        return await self._change(
            session_key, "goal_paused", lambda g: replace(g, status="paused", paused_at_ms=now)
        )

    async def resume(self, session_key: str) -> Goal:
        """Make it active again."""
        return await self._change(
            session_key,
            "goal_resumed",
            lambda g: replace(g, status="active", paused_at_ms=None, completed_at_ms=None),
        )

    async def complete(self, session_key: str) -> Goal:
        """It is reached."""
        now = self._clock.now_ms()
        return await self._change(
            session_key,
            "goal_completed",
            lambda g: replace(g, status="completed", completed_at_ms=now, paused_at_ms=None),
        )

    async def clear(self, session_key: str) -> bool:
        """Forget it; False when there was none."""
        stored = await self._store.take(GOALS, session_key)
        if stored is None:
            return False
        self._tell("goal_cleared", _goal(session_key, stored))
        return True

    async def record_continuation(self, session_key: str, run_id: str) -> Goal:
        """A run goes on with it. Raises `InvalidInput` with `invalid_run_id`."""
        if not run_id.strip():
            raise InvalidInput("invalid_run_id", "a continuation needs the id of its run")
        return await self._change(
            session_key,
            "goal_continuation_submitted",
            lambda g: replace(g, last_run_id=run_id, continuation_count=g.continuation_count + 1),
        )

    async def record_loop_verdict(
        self, session_key: str, action: str, *, reason: str = "", source: str = ""
    ) -> Goal:
        """What a judge said of it: `continue`, `done`, `blocked` or `needs_input`.

        Raises `InvalidInput` with `invalid_loop_action`.
        """
        if action not in LOOP_ACTIONS:
            known = ", ".join(LOOP_ACTIONS)
            raise InvalidInput("invalid_loop_action", f"{action!r} is none of {known}")
        now = self._clock.now_ms()
        return await self._change_loop(
            session_key,
            "goal_loop_verdict",
            lambda loop, goal: loop.judged(
                action, reason=reason, source=source, run_id=goal.last_run_id, at_ms=now
            ),
        )

    async def record_loop_status(
        self, session_key: str, status: str, *, error: str | None = None
    ) -> Goal:
        """How its loop is doing. Raises `InvalidInput` with `invalid_loop_status`."""
        now = self._clock.now_ms()
        return await self._change_loop(
            session_key,
            "goal_loop_status",
            lambda loop, goal: loop.moved(status, run_id=goal.last_run_id, error=error, at_ms=now),
        )

    async def configure_loop_auto(
        self, session_key: str, enabled: bool, options: Mapping[str, object] | None = None
    ) -> Goal:
        """Whether its loop starts by itself; options that mean nothing are ignored."""
        now = self._clock.now_ms()
        auto = {"enabled": enabled, "updatedAtMs": now, "options": valid_options(options or {})}
        return await self._change_loop(
            session_key, "goal_loop_status", lambda loop, _: loop.automatic(auto, at_ms=now)
        )

    async def diagnostics(self) -> dict[str, object]:
        """Counts, hashes and sizes: no text and no session key."""
        found = await self.list(limit=1_000_000)
        return {
            "count": len(found),
            "by_status": dict(Counter(goal.status for goal in found)),
            "goals": [
                {
                    "session_hash": short_hash(goal.session_key),
                    "status": goal.status,
                    "objective_bytes": len(goal.objective.encode()),
                    "continuation_count": goal.continuation_count,
                    "loop_status": goal.loop.status,
                }
                for goal in found[:50]
            ],
        }

    # -- inside ------------------------------------------------------------------------------

    async def _written(self, session_key: str, stored: object, goal: Goal) -> bool:
        if stored is None:
            return await self._store.put_new(GOALS, session_key, as_row(goal))
        return await self._store.compare_and_swap(GOALS, session_key, stored, as_row(goal))

    async def _change(
        self, session_key: str, event_type: str, update: Callable[[Goal], Goal]
    ) -> Goal:
        now = self._clock.now_ms()
        goal = await change(
            self._store,
            GOALS,
            session_key,
            Goal,
            lambda found: replace(update(found), updated_at_ms=now),
            "this session has no goal",
        )
        self._tell(event_type, goal)
        return goal

    async def _change_loop(
        self,
        session_key: str,
        event_type: str,
        update: Callable[[LoopState, Goal], LoopState],
    ) -> Goal:
        return await self._change(
            session_key,
            event_type,
            lambda goal: replace(goal, meta=update(goal.loop, goal).into(goal.meta)),
        )

    def _tell(self, event_type: str, goal: Goal) -> None:
        loop = goal.loop
        payload: dict[str, object] = {
            "goal_id": goal.id,
            "agent_id": goal.agent_id,
            "session_key": goal.session_key,
            "status": goal.status,
            "objective_bytes": len(goal.objective.encode()),
            "continuation_count": goal.continuation_count,
            "last_run_id": goal.last_run_id,
            "loop_verdict": loop.last_action,
            "loop_status": loop.status,
            "loop_auto_enabled": loop.is_automatic,
        }
        for topic in (TOPIC, session_topic(goal.session_key)):
            self._bus.publish_event(topic, event_type, payload)
        self._introspection.record(
            event_type, payload, session_key=goal.session_key, agent_id=goal.agent_id
        )


def _goal(session_key: str, stored: object) -> Goal:
    return parse_row(Goal, stored, f"the goal of {session_key}")


def _renewed(old: Goal, fresh: Goal) -> Goal:
    """The new goal as the same record: its id, age and count stay."""
    return replace(
        fresh,
        id=old.id,
        created_at_ms=old.created_at_ms,
        continuation_count=old.continuation_count,
        last_run_id=old.last_run_id,
        budget=fresh.budget or old.budget,
        meta={**old.meta, **fresh.meta},
    )
