"""Asking a person (specification lemon_core 7; DESIGN rulings 9 and 32)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from lemon_core.approvals import (
    DECISIONS,
    TOPIC,
    ApprovalsClosed,
    ApprovalTimeout,
    Approved,
    Denied,
    GrantRule,
    InvalidDecision,
    action_hash,
)
from lemon_core.events import ApprovalResolved, PendingApproval
from lemon_core.store import Store, StoreCorrupt, StoreSettings, StoreUnavailable, open_store
from lemon_core.store.approvals import ANY_ACTION, PENDING, GrantScope
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import FakeClock
from lemon_core.tests.approval_desk import ACTION, KEY, Desk, Outcome, asking

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(backend_settings: StoreSettings) -> AsyncIterator[Desk]:
    """Approvals over each backend."""
    clock = FakeClock()
    async with open_store(backend_settings, clock) as store:
        yield Desk(store, clock=clock)


def test_equal_actions_have_equal_hashes() -> None:
    assert action_hash({"b": 1, "a": "ü"}) == action_hash({"a": "ü", "b": 1})
    assert action_hash({}) == "44136fa355b3678a"  # of the two bytes `{}`
    with pytest.raises(ValueError, match="JSON"):
        action_hash({"a": float("nan")})


@pytest.mark.behaviour("lemon_core.21")
async def test_stored_grants_answer_by_scope_and_exact_before_any(desk: Desk) -> None:
    """Each grant that is added is asked before the ones that were there; nothing is told."""
    request, exact = asking(node_id="n"), action_hash(ACTION)
    scopes: tuple[tuple[GrantScope, str], ...] = (
        ("session", KEY),
        ("agent", "coder"),
        ("node", "n"),
        ("global", ""),
    )
    assert await desk.approvals.granted(request) is None
    with desk.bus.subscribe(TOPIC) as events, anyio.fail_after(5):
        for scope, owner in scopes:
            for hashed in (ANY_ACTION, exact):
                await desk.grants.put_grant(scope, owner, "bash", hashed, 1)
                assert await desk.approvals.request(request) == Approved(scope)
        events.close()
        assert await events.receive_batch() == []
    assert desk.counted == []


@pytest.mark.behaviour("lemon_core.21")
async def test_a_grant_holds_for_its_tool_action_and_owner_alone(desk: Desk) -> None:
    await desk.grants.put_grant("session", KEY, "bash", action_hash(ACTION), 1)
    await desk.grants.put_grant("node", "n", "bash", ANY_ACTION, 1)
    for other in (
        asking(tool="write"),
        asking(action={"command": "ls"}),
        asking(session_key="agent:coder:main:sub:1"),
        asking(session_key=None, node_id="m"),
    ):
        assert await desk.approvals.granted(other) is None


@pytest.mark.behaviour("lemon_core.21")
async def test_a_grant_rule_shuts_out_wildcards_and_scopes(desk: Desk) -> None:
    await desk.grants.put_grant("global", "", "bash", ANY_ACTION, 1)
    await desk.grants.put_grant("agent", "coder", "bash", action_hash(ACTION), 1)

    async def granted(rule: GrantRule) -> Approved | None:
        return await desk.approvals.granted(asking(grants=rule))

    assert await granted(GrantRule()) == Approved("global")
    assert await granted(GrantRule(wildcard=False)) == Approved("agent")
    assert await granted(GrantRule(scopes=frozenset({"agent"}))) == Approved("agent")
    assert await granted(GrantRule(scopes=frozenset({"session"}))) is None
    assert await granted(GrantRule(scopes=frozenset())) is None
    assert await granted(GrantRule(frozenset({"global"}), wildcard=False)) is None


@pytest.mark.behaviour("lemon_core.21")
async def test_a_decision_outside_the_rule_raises_and_the_question_stays(desk: Desk) -> None:
    outcome, rule = Outcome(), GrantRule(decisions=frozenset({"deny", "approve_once"}))
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, outcome, asking(grants=rule))
        pending = await heard.question()
        assert pending.decisions == ["approve_once", "deny"]
        for word in ("approve_global", "timeout", "yes"):
            with pytest.raises(InvalidDecision):
                await desk.approvals.resolve(pending.id, word)
        assert await desk.approvals.pending_approvals() == [pending]
        assert await desk.approvals.resolve(pending.id, "approve_once")
    assert outcome.value == Approved("once")


@pytest.mark.behaviour("lemon_core.21")
@pytest.mark.parametrize(
    ("decision", "answer", "next_answer"),
    [
        ("approve_once", Approved("once"), None),
        ("approve_session", Approved("session"), Approved("session")),
        ("approve_agent", Approved("agent"), Approved("agent")),
        ("approve_global", Approved("global"), Approved("global")),
        ("deny", Denied(), None),
    ],
)
async def test_a_question_waits_and_is_answered(
    desk: Desk, decision: str, answer: object, next_answer: object
) -> None:
    """What is approved for longer is stored; `once` and a denial are not."""
    assert await desk.answered(asking(), decision) == answer
    assert await desk.approvals.granted(asking()) == next_answer
    assert await desk.nothing_is_open()
    assert desk.counted == [("requested", None), ("resolved", decision)]


async def test_the_question_and_its_end_say_what_a_listener_needs(desk: Desk) -> None:
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, Outcome(), asking(session_id="s", rationale="why"))
        event = await heard.next()
        (pending,) = await desk.approvals.pending_approvals()
        assert cast(Any, event.payload).pending == pending
        assert event.meta["run_id"] == "run_1"
        assert event.meta["node_id"] == "here"
        assert pending == PendingApproval(
            id=pending.id,
            tool="bash",
            run_id="run_1",
            session_id="s",
            session_key=KEY,
            agent_id="coder",
            action=ACTION,
            rationale="why",
            requested_at_ms=desk.clock.now_ms(),
            decisions=list(DECISIONS),
        )
        await desk.approvals.resolve(pending.id, "deny")
        assert await heard.end() == ApprovalResolved(
            approval_id=pending.id, decision="deny", pending=pending
        )


async def test_the_agent_is_default_without_a_session_key(desk: Desk) -> None:
    assert asking(session_key=None).agent == "default"
    assert asking(agent_id="a").agent == "a"
    await desk.answered(asking(session_key=None), "approve_agent")
    assert await desk.approvals.granted(asking(agent_id="default")) == Approved("agent")


@pytest.mark.behaviour("lemon_core.21")
async def test_a_grant_without_its_key_is_given_once_and_not_stored(desk: Desk) -> None:
    request = asking(session_key=None)
    assert await desk.answered(request, "approve_session") == Approved("once")
    assert await desk.store.load_all("exec_approvals_session") == []


@pytest.mark.behaviour("lemon_core.21")
async def test_two_resolvers_one_wins(desk: Desk) -> None:
    outcome, won = Outcome(), list[str]()

    async def answer(approval_id: str, decision: str) -> None:
        if await desk.approvals.resolve(approval_id, decision):
            won.append(decision)

    async with desk.listening() as heard:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.ask, outcome, asking())
            pending = await heard.question()
            for decision in ("deny", "approve_global", "deny", "approve_once"):
                tasks.start_soon(answer, pending.id, decision)
        (winner,) = won
        assert (await heard.end()).decision == winner
        assert not await desk.approvals.resolve(pending.id, "deny")
        assert not await desk.approvals.resolve("appr_unknown", "deny")
    expected = {"deny": Denied(), "approve_global": Approved("global")}
    assert outcome.value == expected.get(winner, Approved("once"))
    # The losers left nothing.
    stored = await desk.store.load_all("exec_approvals_policy")
    assert len(stored) == (winner == "approve_global")


@pytest.mark.behaviour("lemon_core.21")
async def test_an_answer_that_races_the_request_is_not_lost() -> None:
    """The record is answered before the write of it has returned to the requester."""

    class Eager(Store):
        async def put(self, table: str, key: Any, value: object) -> None:
            await super().put(table, key, value)
            if table == PENDING:
                assert await here.approvals.resolve(key, "approve_once")

    here = Desk(Eager(MemoryBackend()))
    await here.store.open()
    with anyio.fail_after(5):
        assert await here.approvals.request(asking()) == Approved("once")
    assert await here.nothing_is_open()


@pytest.mark.behaviour("lemon_core.21")
async def test_the_end_of_its_time_ends_a_question(desk: Desk) -> None:
    outcome = Outcome()
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, outcome, asking(expires_in_ms=1_000))
        pending = await heard.question()
        assert pending.expires_at_ms == desk.clock.now_ms() + 1_000
        await desk.clock.wait_for_sleepers()
        await desk.clock.advance(1_000)
        assert (await heard.end()).decision == "timeout"
    assert isinstance(outcome.value, ApprovalTimeout)
    assert await desk.nothing_is_open()
    assert not await desk.approvals.resolve(pending.id, "approve_once")
    assert desk.counted[-1] == ("resolved", "timeout")


async def test_an_answer_in_time_ends_the_clock(desk: Desk) -> None:
    assert await desk.answered(asking(expires_in_ms=1_000), "deny") == Denied()
    assert desk.clock.sleepers == 0


@pytest.mark.behaviour("lemon_core.21")
async def test_a_cancelled_requester_takes_its_question_along(desk: Desk) -> None:
    async with desk.listening() as heard:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.ask, Outcome(), asking(expires_in_ms=1_000))
            pending = await heard.question()
            tasks.cancel_scope.cancel()
        ended = await heard.end()
    assert (ended.approval_id, ended.decision) == (pending.id, "timeout")
    assert ended.reason == "its requester ended"
    assert await desk.nothing_is_open()


@pytest.mark.behaviour("lemon_core.21")
async def test_a_drain_leaves_questions_which_the_next_boot_settles(desk: Desk) -> None:
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, Outcome(), asking())
        pending = await heard.question()
        desk.is_draining = True
        tasks.cancel_scope.cancel()
    assert await desk.approvals.pending_approvals() == [pending]
    after = Desk(desk.store, clock=desk.clock)
    async with after.listening() as heard:
        assert await after.approvals.settle_dead(lambda node, run: True) == 1
        assert await heard.end() == ApprovalResolved(
            approval_id=pending.id,
            decision="timeout",
            pending=pending,
            reason="expired by restart",
        )
    assert await after.nothing_is_open()
    assert await after.approvals.settle_dead(lambda node, run: True) == 0
    types = [entry.event_type for entry in await after.introspection.query()]
    assert types == ["approval_timed_out"]


async def test_the_questions_of_a_run_that_is_over_end_and_others_stay(desk: Desk) -> None:
    over, going_on = Outcome(), Outcome()
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, over, asking())
        first = await heard.question()
        tasks.start_soon(desk.ask, going_on, asking(run_id="run_2"))
        second = await heard.question()
        assert await desk.approvals.settle_run("run_1", "user_requested") == 1
        assert await desk.approvals.settle_run("run_1", "user_requested") == 0
        end = await heard.end()
        assert (end.approval_id, end.decision, end.reason) == (
            first.id,
            "timeout",
            "user_requested",
        )
        assert [p.id for p in await desk.approvals.pending_approvals()] == [second.id]
        assert await desk.approvals.resolve(second.id, "deny")
    assert isinstance(over.value, ApprovalTimeout)


@pytest.mark.behaviour("lemon_core.21")
async def test_another_nodes_live_run_can_be_answered_once(desk: Desk) -> None:
    other, outcome = Desk(desk.store, clock=desk.clock, node_id="there"), Outcome()
    async with other.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(other.ask, outcome, asking(run_id="run_live"))
        live = await heard.question()
        tasks.start_soon(other.ask, Outcome(), asking(run_id="run_dead"))
        dead = await heard.question()
        lives = {("there", "run_live")}
        assert await desk.approvals.settle_dead(lambda *run: run in lives) == 1
        assert await desk.approvals.pending_approvals() == [live]
        assert not await desk.approvals.resolve(dead.id, "deny")
        assert await desk.approvals.resolve(live.id, "approve_once")
        assert not await other.approvals.resolve(live.id, "deny")
        tasks.cancel_scope.cancel()


@pytest.mark.behaviour("lemon_core.21")
async def test_introspection_holds_nothing_of_the_action(desk: Desk) -> None:
    action = {"type": "two words", "command": "cat hidden", "deep": [{"hidden": "hidden"}]}
    await desk.answered(asking(rationale="hidden"), "approve_agent")
    await desk.answered(asking(action=action, rationale="hidden"), "deny")
    entries = await desk.introspection.query()
    told = sorted((e.event_type, sorted(e.payload)) for e in entries)
    known = ["action_hash", "action_type", "approval_id"]
    requested = ("approval_requested", [*known, "expires", "tool"])
    resolved = ("approval_resolved", [*known, "approved", "decision", "scope", "tool"])
    assert told == [requested, requested, resolved, resolved]
    assert {e.payload["action_type"] for e in entries} == {"shell", None}
    text = json.dumps([e.payload for e in entries])
    assert "hidden" not in text
    assert "two words" not in text
    assert "rm -r" not in text


async def test_a_store_that_fails_approves_nothing_and_keeps_nobody(desk: Desk) -> None:
    async def unavailable(question: object) -> None:
        raise StoreUnavailable("gone")

    desk.grants.put_question = unavailable  # type: ignore[method-assign]
    with anyio.fail_after(5), pytest.raises(StoreUnavailable):
        await desk.approvals.request(asking())
    assert desk.counted == []


async def test_a_grant_that_cannot_be_stored_still_answers_the_question(desk: Desk) -> None:
    async def unavailable(*args: object) -> None:
        raise StoreUnavailable("gone")

    desk.grants.put_grant = unavailable  # type: ignore[method-assign,assignment]
    outcome = Outcome()
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, outcome, asking())
        pending = await heard.question()
        with pytest.raises(StoreUnavailable):
            await desk.approvals.resolve(pending.id, "approve_agent")
    assert outcome.value == Approved("agent")


async def test_the_time_ends_although_the_store_cannot_take_it(desk: Desk) -> None:
    async def unavailable(approval_id: str) -> None:
        raise StoreUnavailable("gone")

    outcome = Outcome()
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, outcome, asking(expires_in_ms=5))
        await heard.question()
        desk.grants.take_question = unavailable  # type: ignore[method-assign]
        await desk.clock.wait_for_sleepers()
        await desk.clock.advance(5)
    assert isinstance(outcome.value, ApprovalTimeout)


@pytest.mark.parametrize("expires_in_ms", [None, 1_000])
async def test_a_runtime_that_stops_keeps_nobody_waiting(
    desk: Desk, expires_in_ms: int | None
) -> None:
    outcome = Outcome()
    async with desk.listening() as heard, anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, outcome, asking(expires_in_ms=expires_in_ms))
        await heard.question()
        desk.is_draining = True
        desk.bus.stop()
    assert isinstance(outcome.value, ApprovalsClosed)
    assert not await desk.nothing_is_open()


async def test_a_damaged_grant_is_no_grant(desk: Desk) -> None:
    key = (KEY, "bash", action_hash(ACTION))
    row = {"tool": "bash", "action_hash": key[2], "scope": "session", "approved_at_ms": 1}
    await desk.store.put("exec_approvals_session", key, {**row, "approved": False})
    with pytest.raises(StoreCorrupt):
        await desk.approvals.request(asking())
