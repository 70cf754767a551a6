"""What others say of a run goes through its stream; answers come back over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import grpc
import pytest

from lemon_core.approvals import (
    TOPIC,
    ApprovalRequest,
    ApprovalTimeout,
    Approved,
    Denied,
    GrantRule,
    InvalidDecision,
)
from lemon_core.bus import run_topic, session_topic
from lemon_core.events import ApprovalRequested, ApprovalResolved
from lemon_core.journal import JournalLimits
from lemon_core.testing import FakeClock
from lemon_gateway.config import GatewaySettings
from lemon_gateway.tests.fakes import (
    NOW_MS,
    SESSION,
    Control,
    Gateway,
    ScriptedExecutor,
    command,
    running_gateway,
    settle,
)
from lemon_gateway.tests.forms import FORMS, Form, Reached, events_of, reaching, wired
from lemon_gateway.tests.peers import ADMIN, MINE, OTHER, calling, refused

BASH: dict[str, object] = {"type": "shell", "command": "make"}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    """Every form."""
    return request.param  # type: ignore[no-any-return]


@dataclass
class Question:
    """A tool of a run that waits for its answer."""

    id: str = ""
    answers: list[object] = field(default_factory=list)
    over: anyio.Event = field(default_factory=anyio.Event)


@asynccontextmanager
async def asking(
    gateway: Gateway,
    run_id: str | None = "run_1",
    *,
    scope: anyio.CancelScope | None = None,
    **wanted: object,
) -> AsyncIterator[Question]:
    """A tool that asks, as `bash` does; the block goes on once the question is published."""
    question = Question()
    fields = {"tool": "bash", "action": BASH, "run_id": run_id, "session_key": SESSION, **wanted}

    async def tool() -> None:
        try:
            with scope or anyio.CancelScope():
                request = ApprovalRequest(**fields)  # type: ignore[arg-type]
                question.answers.append(await gateway.approvals.request(request))
        except ApprovalTimeout as exc:
            question.answers.append(exc.code)
        question.over.set()

    async with anyio.create_task_group() as tasks:
        with gateway.bus.subscribe(TOPIC) as published:
            tasks.start_soon(tool)
            payload = (await anext(published)).payload
        assert isinstance(payload, ApprovalRequested)
        question.id = payload.approval_id
        yield question
        tasks.cancel_scope.cancel()


async def started(reached: Reached, run_id: str = "run_1") -> Control:
    await reached.port.submit_execution(command(run_id))
    control = await reached.inside.executor.run(run_id)
    await control.started("sess_1")
    await settle()
    return control


@pytest.mark.behaviour("lemon_gateway.40")
async def test_an_approval_is_in_the_stream_and_its_answer_wakes_the_tool(form: Form) -> None:
    """Specification lemon_gateway 5.2, 13.40: gapless event_seq, the second answer is too late."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            control = await started(reached)
            with reached.inside.bus.subscribe(TOPIC) as published:
                async with asking(reached.inside) as question:
                    await control.say("waiting")
                    await settle()
                    assert await reached.port.resolve_approval(question.id, "approve_once")
                    await question.over.wait()
                    assert question.answers == [Approved("once")]
                    assert not await reached.port.resolve_approval(question.id, "deny")
                told = await published.receive_batch()
            await control.complete()
            seen = await events_of(reached.port, "run_1")
            assert [event.type for event in seen] == [
                "run_started",
                "engine_started",
                "approval_requested",
                "delta",
                "approval_resolved",
                "engine_completed",
                "run_completed",
            ]
            assert [event.meta["event_seq"] for event in seen] == list(range(1, 8))
            streamed = [seen[2], seen[4]]
            assert [event.payload for event in streamed] == [event.payload for event in told]
            assert all("event_seq" not in event.meta for event in told), "as they were published"
            assert isinstance(streamed[1].payload, ApprovalResolved)
            assert streamed[1].payload.decision == "approve_once"
            assert all(event.meta["session_key"] == SESSION for event in streamed)


@pytest.mark.behaviour("lemon_gateway.40")
@pytest.mark.parametrize("remote", ["unix_socket", "tcp"])
async def test_another_node_s_bus_has_them_on_their_own_topics(remote: Form) -> None:
    """Specification lemon_gateway 5.3: a user can approve from any node."""
    with anyio.fail_after(5):
        async with reaching(remote) as reached:
            control = await started(reached)
            bus = reached.bus
            with bus.subscribe(TOPIC) as approvals, bus.subscribe(run_topic("run_1")) as run:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(events_of, reached.port, "run_1")
                    async with asking(reached.inside) as question:
                        shown = (await anext(approvals)).payload
                        assert isinstance(shown, ApprovalRequested)
                        assert shown.pending.action == BASH
                        assert await reached.port.resolve_approval(shown.approval_id, "deny")
                        await question.over.wait()
                        assert question.answers == [Denied()]
                    assert (await anext(approvals)).type == "approval_resolved"
                    reached.inside.bus.publish_event(
                        run_topic("run_1"), "task_started", {"task_id": "t1"}
                    )
                    await control.complete()
                types = [event.type for event in await run.receive_batch()]
            assert types == [
                "run_started",
                "engine_started",
                "task_started",
                "engine_completed",
                "run_completed",
            ]


@pytest.mark.parametrize("cut", ["before", "between", "after"])
async def test_a_cut_connection_loses_no_question_and_no_answer(cut: str) -> None:
    """Specification lemon_gateway 5.3, 13.21: on the other node each is told once, in order."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway, wired(gateway) as (client, bus, wire):
            await client.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await control.started("sess_1")
            with bus.subscribe(TOPIC) as approvals, bus.subscribe(run_topic("run_1")) as run:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(events_of, client, "run_1")
                    await anext(run)
                    if cut == "before":
                        await wire.cut()
                    async with asking(gateway) as question:
                        if cut == "between":
                            assert (await anext(approvals)).type == "approval_requested"
                            await wire.cut()
                        assert await client.resolve_approval(question.id, "approve_once")
                        await question.over.wait()
                    if cut == "after":
                        await wire.cut()
                    await control.complete()
                told = [event.type for event in await approvals.receive_batch()]
            assert told == ["approval_requested", "approval_resolved"][cut == "between" :]


async def test_a_late_subscriber_learns_of_a_question_that_was_folded_away() -> None:
    """Specification lemon_gateway 5.3: never silent loss, also of what waits for a person."""
    settings = GatewaySettings(node_id="node-1", journal=JournalLimits(max_events=4))
    with anyio.fail_after(5):
        async with reaching("unix_socket", settings=settings) as reached:
            control = await started(reached)
            async with asking(reached.inside) as question:
                await control.say(*["word "] * 20)
                await settle()
                with reached.bus.subscribe(TOPIC) as approvals:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(events_of, reached.port, "run_1")
                        shown = await anext(approvals)
                        assert isinstance(shown.payload, ApprovalRequested)
                        assert shown.payload.pending.action == BASH
                        assert await reached.port.resolve_approval(question.id, "approve_once")
                        await question.over.wait()
                        assert (await anext(approvals)).type == "approval_resolved"
                        await control.complete()


async def test_tasks_and_checkpoints_are_in_the_stream_and_nothing_of_routers(form: Form) -> None:
    """Specification lemon_gateway 5.2: task and checkpoint events travel as `plain`."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            control = await started(reached)
            bus, topic = reached.inside.bus, run_topic("run_1")
            bus.publish_event(topic, "task_started", {"task_id": "t1", "run_id": "run_2"})
            phase = {"run_id": "run_1", "phase": "streaming", "source": "lemon_router"}
            bus.publish_event(topic, "run_phase_changed", phase)
            bus.publish_event(topic, "checkpoint_created", {"id": "chk_0", "paths": ["a"]})
            bus.publish_event(session_topic(SESSION), "checkpoint_created", {"id": "chk_1"})
            await control.complete()
            seen = await events_of(reached.port, "run_1")
            assert [(event.type, event.payload) for event in seen[2:4]] == [
                ("task_started", {"task_id": "t1", "run_id": "run_2"}),
                ("checkpoint_created", {"id": "chk_0", "paths": ["a"]}),
            ]
            assert [event.meta["event_seq"] for event in seen] == [1, 2, 3, 4, 5, 6]


async def test_approvals_of_other_runs_and_after_the_end_stay_out() -> None:
    """Specification lemon_gateway 1.3: nothing follows `run_completed`."""
    with anyio.fail_after(5):
        async with reaching("in_process") as reached:
            control = await started(reached)
            async with asking(reached.inside, "run_other"):
                await control.complete()
                seen = await events_of(reached.port, "run_1")
                async with asking(reached.inside, "run_1"):
                    assert seen == await events_of(reached.port, "run_1")
            assert "approval_requested" not in [event.type for event in seen]
            # Nobody listens for a run that is over.
            assert not reached.inside.bus.has_subscribers(TOPIC)
            assert not reached.inside.bus.has_subscribers(run_topic("run_1"))


class CancelledTool(ScriptedExecutor):
    """Its tool is cancelled with the run, and is heard of before `cancel` returns."""

    scope: anyio.CancelScope
    question: Question

    async def cancel(self, control: object) -> None:
        self.scope.cancel()
        await self.question.over.wait()


@pytest.mark.behaviour("lemon_gateway.101")
async def test_a_question_that_nobody_answers_goes_with_its_run() -> None:
    """A cancel settles the question as denied before the run's end; the next message is run."""
    executor = CancelledTool()
    with anyio.fail_after(5):
        async with reaching("in_process", executor) as reached:
            gateway = reached.inside
            await started(reached)
            executor.scope = anyio.CancelScope()
            async with asking(gateway, scope=executor.scope) as executor.question:
                await reached.port.cancel_by_run_id("run_1")
                seen = await events_of(reached.port, "run_1")
            assert [event.type for event in seen[2:]] == [
                "approval_requested",
                "approval_resolved",
                "run_completed",
            ]
            assert isinstance(seen[3].payload, ApprovalResolved)
            assert seen[3].payload.decision == "timeout"
            assert await gateway.approvals.pending_approvals() == []
            await reached.port.submit_execution(command("run_2"))
            await (await executor.run("run_2")).complete("next")
            assert (await gateway.end("run_2")).answer == "next"


@pytest.mark.behaviour("lemon_gateway.101")
async def test_a_question_whose_time_is_over_blocks_nothing() -> None:
    """Its tool is told that it may not, and the run goes on to its end."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5):
        async with reaching("in_process", clock=clock) as reached:
            control = await started(reached)
            async with asking(reached.inside, expires_in_ms=60_000) as question:
                await settle()
                await clock.advance(60_000)
                await question.over.wait()
                assert question.answers == ["approval_timeout"]
            await control.complete("went on")
            assert (await reached.inside.end("run_1")).answer == "went on"
            assert await reached.inside.approvals.pending_approvals() == []


async def test_a_peer_answers_for_its_own_runs_only() -> None:
    """Specification lemon_gateway 5.4: unless it has the admin scope."""
    denied = (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    once = GrantRule(decisions=frozenset({"approve_once", "deny"}))
    async with calling() as (caller, gateway, _):
        await caller.submit(command("run_1"), MINE)
        await gateway.executor.run("run_1")
        async with asking(gateway) as question:
            assert await refused(caller.resolve(question.id, "deny", OTHER)) == denied
            for decision in ("approve_agent", "approve_global"):
                assert await refused(caller.resolve(question.id, decision, MINE)) == denied
            for wrong in ("yes", ""):
                assert (await refused(caller.resolve(question.id, wrong, MINE)))[0] is invalid
            assert (await refused(caller.resolve("", "deny", MINE)))[0] is invalid
            assert await caller.resolve(question.id, "approve_once", MINE)
            assert not await caller.resolve(question.id, "approve_once", MINE)
        async with asking(gateway, run_id=None) as question:
            assert await refused(caller.resolve(question.id, "deny", MINE)) == denied
            assert await caller.resolve(question.id, "approve_agent", ADMIN)
        async with asking(gateway, action={"type": "other"}, grants=once) as question:
            unfit = await refused(caller.resolve(question.id, "approve_global", ADMIN))
            assert unfit == (invalid, "invalid_decision")
            assert await caller.resolve(question.id, "deny", ADMIN)
        assert not await caller.resolve("apr_unknown", "deny", MINE)


async def test_a_decision_that_no_question_takes_is_the_same_error_in_every_form(
    form: Form,
) -> None:
    """Specification lemon_gateway 5.1: callers cannot tell the forms apart."""
    once = GrantRule(decisions=frozenset({"approve_once", "deny"}))
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            await started(reached)
            async with asking(reached.inside, grants=once) as question:
                for decision in ("maybe", "approve_session"):
                    with pytest.raises(InvalidDecision):
                        await reached.port.resolve_approval(question.id, decision)
                assert await reached.port.resolve_approval(question.id, "deny")
