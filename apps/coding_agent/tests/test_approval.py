"""Calls that a person has to approve (specification coding_agent 1 rule 5, 6, 11.4 and 11.11)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from coding_agent.approval_actions import ApprovalActions
from coding_agent.tests.askers import Answers, asker
from coding_agent.tests.harness import details
from coding_agent.tests.scene import SESSION_KEY, Live, Scene, scene, tool_turn
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext
from lemon_ai.testing import Turn
from lemon_core.approvals import (
    TOPIC,
    ApprovalRequest,
    ApprovalTimeout,
    Approved,
    Denied,
    ExecApprovals,
    action_hash,
)
from lemon_core.events import ApprovalRequested, ApprovalResolved, Event, PendingApproval
from lemon_core.store import StoreUnavailable
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.requests import EngineAction, SinkMessage

pytestmark = pytest.mark.anyio

POLICY = ToolPolicy.parse({"require_approval": ["bash"]})
ASKING = {"approvals": "ask"}
COMMAND = {"command": "touch ran"}


async def called(answers: Answers, *, can_ask: bool = True) -> AgentToolResult:
    """The result of a gated call whose body answers `done`."""

    async def body(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("done")

    tool = asker(answers, can_ask=can_ask).gated(AgentTool("bash", "", {}, body))
    context = ToolCallContext("c", dict(COMMAND), AbortSignal(), lambda _: None)
    return await tool.execute(context)


async def test_an_approved_call_runs() -> None:
    answers = Answers(Approved("once"))
    assert (await called(answers)).text == "done"
    (request,) = answers.asked
    assert request == ApprovalRequest(
        run_id="run_1",
        session_id="sess_1",
        session_key=SESSION_KEY,
        agent_id="default",
        tool="bash",
        action=COMMAND,
        rationale="the tool policy wants calls of bash approved",
    )


@pytest.mark.behaviour("coding_agent.11")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Denied(), "approval_denied"),
        (ApprovalTimeout("appr_1", None), "approval_timeout"),
        (StoreUnavailable("gone"), "approval_error"),
        (RuntimeError("broken"), "approval_error"),
    ],
)
async def test_whatever_is_no_approval_refuses(answer: Denied | Exception, reason: str) -> None:
    result = await called(Answers(answer))
    assert details(result) == {"reason": reason}
    assert result.is_error
    assert "was not run" in result.text


async def test_a_run_that_cannot_ask_takes_stored_grants_alone() -> None:
    granted = Answers(Approved("agent"))
    assert (await called(granted, can_ask=False)).text == "done"
    assert granted.asked == []
    broken = await called(Answers(StoreUnavailable("gone")), can_ask=False)
    assert details(broken) == {"reason": "approval_error"}


@asynccontextmanager
async def asked(here: Scene) -> AsyncIterator[tuple[Live, PendingApproval, ExecApprovals]]:
    """A run that waits for an approval of its command; over when the block is."""
    approvals: ExecApprovals = here.runtime.approvals
    with anyio.fail_after(10), here.runtime.bus.subscribe(TOPIC) as events:
        async with anyio.create_task_group() as tasks:
            live = await here.start(tasks, policy=POLICY, meta=ASKING)
            event = await anext(events)
            assert isinstance(event.payload, ApprovalRequested)
            yield live, event.payload.pending, approvals


def approval_actions(live: Live) -> list[tuple[str, str, bool | None, str | None]]:
    return [
        (a.action.id, a.phase, a.ok, a.message) for a in live.actions if a.action.kind == "approval"
    ]


@pytest.mark.behaviour("coding_agent.4", "coding_agent.11")
@pytest.mark.parametrize(
    ("decision", "ok", "told"),
    [
        ("approve_once", True, "approved once"),
        ("approve_session", True, "approved for session"),
        ("approve_agent", True, "approved for agent"),
        ("approve_global", True, "approved globally"),
        ("deny", False, "denied"),
    ],
)
async def test_a_question_is_shown_and_its_answer_decides(
    tmp_path: Path, decision: str, ok: bool, told: str
) -> None:
    turn = tool_turn("bash", **COMMAND)
    async with scene(tmp_path, turn, Turn(text="ok")) as here:
        async with asked(here) as (live, pending, approvals):
            assert os.listdir(here.cwd) == []
            assert pending.action == COMMAND
            assert await approvals.resolve(pending.id, decision)
        assert os.listdir(here.cwd) == (["ran"] if ok else [])
        shown = f"approval:{pending.id}"
        assert approval_actions(live) == [
            (shown, "started", None, "awaiting approval"),
            (shown, "completed", ok, told),
        ]
        first = next(a.action for a in live.actions if a.action.kind == "approval")
        assert first.title == "`touch ran`"
        assert live.deltas == ["ok"]
        assert live.completed.ok
        if not ok:
            ended = [a.action for a in live.actions if a.action.kind == "command"][-1]
            assert ended.detail is not None
            assert ended.detail["result_meta"] == {"reason": "approval_denied"}


@pytest.mark.behaviour("coding_agent.4")
async def test_a_cancelled_run_takes_its_question_along(tmp_path: Path) -> None:
    async with scene(tmp_path, tool_turn("bash", **COMMAND)) as here:
        async with asked(here) as (live, pending, approvals):
            await here.executor.cancel(live.handle.control)
        assert await approvals.pending_approvals() == []
        assert approval_actions(live)[-1] == (
            f"approval:{pending.id}",
            "completed",
            False,
            "timed out",
        )
        assert os.listdir(here.cwd) == []
        assert live.completed.error == "Cancelled by user"


async def test_a_stored_grant_answers_without_a_question(tmp_path: Path) -> None:
    turn = tool_turn("bash", **COMMAND)
    async with scene(tmp_path, turn, Turn(text="ok")) as here:
        grants = ExecApprovalStore(here.runtime.store)
        await grants.put_grant("agent", "default", "bash", action_hash(COMMAND), 1)
        live = await here.run(policy=POLICY)
        assert os.listdir(here.cwd) == ["ran"]
        assert approval_actions(live) == []


def translated(*pairs: tuple[str, object]) -> list[SinkMessage]:
    actions = ApprovalActions("run_1", "sess_1", SESSION_KEY)
    return actions.translate(Event(name, 1, payload, {}) for name, payload in pairs)


@pytest.mark.behaviour("coding_agent.4")
def test_another_sessions_approval_emits_nothing() -> None:
    pending = PendingApproval(id="appr_1", tool="bash", session_id="s", session_key="agent:b:main")
    assert (
        translated(
            ("approval_requested", ApprovalRequested(approval_id="appr_1", pending=pending)),
            (
                "approval_resolved",
                ApprovalResolved(approval_id="appr_1", decision="deny", pending=pending),
            ),
        )
        == []
    )


@pytest.mark.behaviour("coding_agent.4")
@pytest.mark.parametrize("facts", [{"session_id": "sess_1"}, {"session_key": SESSION_KEY}])
def test_an_approval_of_the_session_is_shown_until_its_time_is_over(facts: dict[str, str]) -> None:
    pending = PendingApproval.model_validate({"id": "appr_1", "tool": "cron", **facts})
    resolved = ApprovalResolved(approval_id="appr_1", decision="timeout", pending=pending)
    started, ended = translated(
        ("approval_requested", ApprovalRequested(approval_id="appr_1", pending=pending)),
        ("approval_resolved", resolved),
    )
    assert isinstance(started, EngineAction)
    assert isinstance(ended, EngineAction)
    assert (started.action.id, started.action.title) == ("approval:appr_1", "cron")
    assert (ended.ok, ended.message) == (False, "timed out")


@pytest.mark.behaviour("coding_agent.104")
async def test_a_grant_covers_the_command_and_not_the_shell_around_it(tmp_path: Path) -> None:
    """The second command asks although the first is granted for ever; the first asks once."""
    commands = ["sh -c 'touch one'", "sh -c 'touch two'", "bash -c 'touch one'", "touch $(cat one)"]
    turns = [tool_turn("bash", command=command) for command in commands]
    asked: list[object] = []
    async with scene(tmp_path, *turns, Turn(text="ok")) as here:
        approvals: ExecApprovals = here.runtime.approvals
        with anyio.fail_after(20), here.runtime.bus.subscribe(TOPIC) as events:
            async with anyio.create_task_group() as tasks:
                live = await here.start(tasks, policy=POLICY, meta=ASKING)
                for decision in ("approve_global", "deny", "deny"):
                    event = await anext(events)
                    while not isinstance(event.payload, ApprovalRequested):
                        event = await anext(events)
                    asked.append(event.payload.pending.action)
                    assert await approvals.resolve(event.payload.approval_id, decision)
        assert live.completed.ok
    assert asked == [
        {"command": "touch one"},
        {"command": "touch two"},
        {"command": "touch $(cat one)"},
    ]
    assert os.listdir(tmp_path / "work") == ["one"]
