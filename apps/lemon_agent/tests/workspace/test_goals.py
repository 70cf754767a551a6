from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import pytest

from lemon_agent.workspace.goals import GOALS, TOPIC, GoalStore
from lemon_agent.workspace.records import InvalidInput, NotFound
from lemon_core.bus import Bus, session_topic
from lemon_core.introspection import Introspection
from lemon_core.store import Store, StoreCorrupt, StoreSettings, open_store
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

KEY = "agent:lem:main"
SECRET = "win the race without telling Bob"


@dataclass
class Desk:
    store: Store
    clock: FakeClock
    bus: Bus
    introspection: Introspection
    goals: GoalStore


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock, bus = FakeClock(), Bus()
    async with open_store(StoreSettings("memory"), clock) as store:
        introspection = Introspection(store, clock, enabled=True)
        yield Desk(store, clock, bus, introspection, GoalStore(store, clock, bus, introspection))


@pytest.mark.behaviour("lemon_agent.24")
async def test_a_goal_goes_through_its_states(desk: Desk) -> None:
    goal = await desk.goals.set(KEY, f" {SECRET} ", max_continuations=3)
    assert (goal.status, goal.objective, goal.agent_id) == ("active", SECRET, "lem")
    assert goal.id.startswith("goal_")
    assert len(goal.id) == len("goal_") + 16
    await desk.clock.advance(10)
    paused = await desk.goals.pause(KEY)
    assert (paused.status, paused.paused_at_ms) == ("paused", goal.created_at_ms + 10)
    resumed = await desk.goals.resume(KEY)
    assert (resumed.status, resumed.paused_at_ms) == ("active", None)
    await desk.goals.record_continuation(KEY, "run_1")
    done = await desk.goals.complete(KEY)
    assert (done.status, done.last_run_id, done.continuation_count) == ("completed", "run_1", 1)
    again = await desk.goals.set(KEY, "another")
    assert (again.id, again.created_at_ms, again.continuation_count, again.status) == (
        goal.id, goal.created_at_ms, 1, "active",
    )  # fmt: skip
    assert again.budget == {"max_continuations": 3}
    assert again.completed_at_ms is None
    assert await desk.goals.get(KEY) == again
    assert await desk.goals.clear(KEY)
    assert not await desk.goals.clear(KEY)
    assert await desk.goals.get(KEY) is None


@pytest.mark.behaviour("lemon_agent.24")
async def test_what_has_no_meaning_is_refused_with_its_code(desk: Desk) -> None:
    for call, code in [
        (desk.goals.set("not a key", "x"), "invalid_session_key"),
        (desk.goals.set(KEY, "  "), "empty_objective"),
        (desk.goals.record_continuation(KEY, " "), "invalid_run_id"),
        (desk.goals.record_loop_verdict(KEY, "maybe"), "invalid_loop_action"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.reason == code
    for call in (desk.goals.pause(KEY), desk.goals.resume(KEY), desk.goals.complete(KEY)):
        with pytest.raises(NotFound):
            await call
    await desk.goals.set(KEY, "x")
    with pytest.raises(InvalidInput) as caught:
        await desk.goals.record_loop_status(KEY, "flying")
    assert caught.value.reason == "invalid_loop_status"


async def test_the_loop_keeps_its_verdicts_and_settings(desk: Desk) -> None:
    await desk.goals.set(KEY, "x", meta={"mine": 1})
    await desk.goals.record_loop_status(KEY, "running")
    for action in ("continue", "blocked"):
        await desk.goals.record_loop_verdict(KEY, action, reason="r", source="judge")
    options = {
        "maxTicks": 3,
        "intervalMs": 0,
        "maxContinuations": 0,
        "waitTimeoutMs": True,
        "judgeModel": " m ",
        "judgeFailurePolicy": "explode",
        "unknown": 1,
    }
    await desk.goals.configure_loop_auto(KEY, True, options)
    goal = await desk.goals.record_loop_status(KEY, "error", error="no model")
    loop = goal.loop
    assert (loop.status, loop.last_action, loop.is_automatic) == ("error", "blocked", True)
    assert loop.data["verdictCount"] == 2
    assert loop.data["lastError"] == "no model"
    assert loop.data["auto"]["options"] == {"maxTicks": 3, "intervalMs": 0, "judgeModel": "m"}
    assert goal.meta["mine"] == 1


@pytest.mark.behaviour("lemon_agent.24")
async def test_events_and_diagnostics_hold_no_text(desk: Desk) -> None:
    with anyio.fail_after(5):
        with (
            desk.bus.subscribe(TOPIC) as goals,
            desk.bus.subscribe(session_topic(KEY)) as session,
        ):
            await desk.goals.set(KEY, SECRET)
            await desk.goals.record_continuation(KEY, "run_1")
            await desk.goals.record_loop_verdict(KEY, "done")
            await desk.goals.configure_loop_auto(KEY, True)
            await desk.goals.pause(KEY)
            await desk.goals.clear(KEY)
            seen = await goals.receive_batch()
            same = await session.receive_batch()
    assert [event.type for event in seen] == [
        "goal_set",
        "goal_continuation_submitted",
        "goal_loop_verdict",
        "goal_loop_status",
        "goal_paused",
        "goal_cleared",
    ]
    assert [event.type for event in same] == [event.type for event in seen]
    told = [str(event.to_map()) for event in seen] + [str(await desk.goals.diagnostics())]
    assert not [text for text in told if "race" in text or "Bob" in text]
    assert "'objective_bytes': 32" in told[-2]


async def test_goals_are_listed_by_status_and_agent_newest_first(desk: Desk) -> None:
    for number, agent in enumerate(("a", "b", "a")):
        await desk.clock.advance(1)
        await desk.goals.set(f"agent:{agent}:main:sub:{number}", "x")
    await desk.clock.advance(1)
    await desk.goals.pause("agent:b:main:sub:1")
    keys = [goal.session_key[-1] for goal in await desk.goals.list()]
    assert keys == ["1", "2", "0"]
    assert [g.session_key[-1] for g in await desk.goals.list(status="paused")] == ["1"]
    assert [g.session_key[-1] for g in await desk.goals.list(agent_id="a", limit=1)] == ["2"]
    found = await desk.goals.diagnostics()
    assert found["by_status"] == {"active": 2, "paused": 1}


async def test_two_changes_at_once_are_both_kept(desk: Desk) -> None:
    await desk.goals.set(KEY, "x")
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(desk.goals.record_continuation, KEY, f"run_{number}")
    goal = await desk.goals.get(KEY)
    assert goal is not None
    assert goal.continuation_count == 5


async def test_a_damaged_goal_is_told_and_not_replaced(desk: Desk) -> None:
    await desk.store.put(GOALS, KEY, {"id": 7})
    with pytest.raises(StoreCorrupt, match="the goal of agent:lem:main is damaged"):
        await desk.goals.set(KEY, "x")
