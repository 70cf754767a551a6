"""One suite for every form of the gateway: in process, Unix socket, TCP with a token."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from lemon_core.bridges import (
    ExecutionRejected,
    RunIdConflict,
    RunNotFound,
    RunSnapshot,
    SteerOutcome,
)
from lemon_core.events import Event
from lemon_core.resume import ResumeToken
from lemon_core.runs import InvalidCommand, MissingContext, MissingConversationKey
from lemon_core.testing import FakeClock
from lemon_gateway.requests import Action, EngineAction, EngineEvent
from lemon_gateway.tests.fakes import (
    NOW_MS,
    Control,
    ScriptedExecutor,
    answer_hello,
    command,
)
from lemon_gateway.tests.forms import FORMS, Form, Reached, events_of, reaching

DETAIL: dict[str, object] = {
    "name": "bash",
    "result_meta": {"exit_code": 3, "big": 2**53, "deep": {"b": [1, None], "a": 0.5}},
}


async def rich_run(control: Control) -> None:
    """A run with every kind of event and with values that a wire could bend."""
    await control.started("sess_1")
    await control.say("Grüße ", "🍋", "\n")
    for phase, ok in (("started", None), ("updated", None), ("completed", False)):
        action = Action(id="tool_1", kind="command", title="`false`", detail=DETAIL)
        await control.sink.send(
            EngineAction(control.ref, action, phase, ok=ok, message="m")  # type: ignore[arg-type]
        )
    await control.sink.send(EngineEvent(control.ref, {"z": 1, "a": [True, None, "x"]}))
    await control.complete("", token="sess_1")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    """Every form."""
    return request.param  # type: ignore[no-any-return]


async def ended(reached: Reached, run_id: str = "run_1") -> list[Event]:
    await reached.port.submit_execution(command(run_id))
    return await events_of(reached.port, run_id)


@pytest.mark.behaviour("lemon_gateway.17", "lemon_gateway.20")
async def test_the_event_list_is_the_same_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 5.1: callers cannot tell the forms apart."""
    with anyio.fail_after(5):
        async with reaching(form, ScriptedExecutor(rich_run)) as reached:
            seen = await ended(reached)
            assert seen == await reached.inside.events("run_1")
            assert [event.meta["event_seq"] for event in seen] == list(range(1, len(seen) + 1))
            assert [event.type for event in seen] == [
                "run_started",
                "engine_started",
                *["delta"] * 3,
                *["engine_action"] * 3,
                "engine_event",
                "engine_completed",
                "run_completed",
            ]
            last_action = seen[7].payload
            assert last_action.ok is False  # type: ignore[attr-defined]
            assert last_action.action.detail == DETAIL  # type: ignore[attr-defined]
            assert list(seen[8].payload) == ["z", "a"], "key order"  # type: ignore[call-overload]


@pytest.mark.behaviour("lemon_gateway.20")
async def test_subscribers_go_on_after_any_number(form: Form) -> None:
    """Specification lemon_gateway 5.3: events from n+1 on, no gap, no repeat."""
    with anyio.fail_after(5):
        async with reaching(form, ScriptedExecutor(rich_run)) as reached:
            everything = await ended(reached)
            for after_seq in range(len(everything)):
                rest = await events_of(reached.port, "run_1", after_seq)
                assert rest == everything[after_seq:]


@pytest.mark.behaviour("lemon_gateway.20")
async def test_two_subscribers_see_the_same_while_the_run_lives(form: Form) -> None:
    """Specification lemon_gateway 5.3."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            await reached.port.submit_execution(command("run_1"))
            control = await reached.inside.executor.run("run_1")
            seen: list[list[Event]] = []

            async def watch() -> None:
                seen.append(await events_of(reached.port, "run_1"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                tasks.start_soon(watch)
                await control.say("a")
                await control.say("b")
                await control.complete()
            assert seen[0] == seen[1] == await reached.inside.events("run_1")


@pytest.mark.behaviour("lemon_gateway.4", "lemon_gateway.20")
async def test_submission_is_idempotent_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 3.1."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            port, runtime = reached.port, reached.inside.runtime
            first = await port.submit_execution(command("run_1"))
            assert (first.status, first.node_id) == ("accepted", "node-1")
            assert first.stream_epoch == runtime.epoch
            assert (await port.submit_execution(command("run_1"))).status == "duplicate"
            with pytest.raises(RunIdConflict):
                await port.submit_execution(command("run_1", "another"))
            await (await reached.inside.executor.run("run_1")).complete("x")
            await events_of(port, "run_1")
            assert (await port.submit_execution(command("run_1"))).status == "already_completed"
            assert reached.inside.executor.order == ["run_1"]


@pytest.mark.behaviour("lemon_gateway.1", "lemon_gateway.20")
async def test_incomplete_commands_are_refused_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 1.1 and 5.3."""
    whole = command("run_1")
    broken = [
        (whole.model_copy(update={"conversation_key": None}), MissingConversationKey),
        (whole.model_copy(update={"execution_context": None}), MissingContext),
        (whole.model_copy(update={"run_id": "run_2"}), InvalidCommand),
        (whole.model_copy(update={"meta": {"x": float("nan")}}), InvalidCommand),
    ]
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            for wrong, error in broken:
                with pytest.raises(error):
                    await reached.port.submit_execution(wrong)
            assert reached.inside.runtime.journal.run_ids() == ()


@pytest.mark.behaviour("lemon_gateway.20")
async def test_cancel_steer_and_snapshot_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 3.1, 3.6, 3.7."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            port, executor = reached.port, reached.inside.executor
            await port.submit_execution(command("run_1"))
            await port.submit_execution(command("run_2"))
            control = await executor.run("run_1")
            await control.started("sess_1")
            await control.say("so far")
            async with aclosing(port.subscribe("run_1")) as items:
                async for item in items:
                    if isinstance(item, Event) and item.type == "delta":
                        break
            accepted = await port.steer("run_1", "sub_1", "left", "steer")
            assert accepted == SteerOutcome("sub_1", "steer", True)
            assert await port.steer("run_1", "sub_1", "left", "steer") == accepted
            refused = await port.steer("run_2", "sub_2", "left", "redirect")
            assert refused == SteerOutcome("sub_2", "redirect", False, "run_not_active")
            assert control.steers == ["left"]
            snapshot = await port.get_run("run_1")
            assert snapshot == await reached.inside.runtime.get_run("run_1")
            assert snapshot is not None
            assert (snapshot.state, snapshot.accumulated_text) == ("running", "so far")
            assert snapshot.resume == ResumeToken(engine="lemon", value="sess_1")
            assert snapshot.applied_steers == ("sub_1",)
            queued = await port.get_run("run_2")
            assert queued is not None
            assert queued.state == "queued"
            for _ in range(2):
                await port.cancel_by_run_id("run_2", "new_session")
                await port.cancel_by_run_id("run_1", "interrupted")
            for run_id, reason in (("run_1", "interrupted"), ("run_2", "new_session")):
                last = (await events_of(port, run_id))[-1]
                assert last.payload.completed.error == reason  # type: ignore[attr-defined]
            assert control.cancels == 1


@pytest.mark.behaviour("lemon_gateway.20")
async def test_unknown_runs_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 3.1: unknown runs in CancelRun are OK."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            await reached.port.cancel_by_run_id("run_x")
            assert await reached.port.get_run("run_x") is None
            outcome = await reached.port.steer("run_x", "sub_1", "hi", "steer")
            assert (outcome.accepted, outcome.reason) == (False, "run_not_active")
            with pytest.raises(RunNotFound):
                await events_of(reached.port, "run_x")


@pytest.mark.behaviour("lemon_gateway.20", "lemon_gateway.41")
async def test_shutdown_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 12: new work is unavailable, live runs end, watchers see it."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            await reached.port.submit_execution(command("run_1"))
            await reached.inside.executor.run("run_1")
            seen: list[Event] = []

            async def watch() -> None:
                seen.extend(await events_of(reached.port, "run_1"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await reached.inside.runtime.refuse()
                with pytest.raises(ExecutionRejected, match="shutting down"):
                    await reached.port.submit_execution(command("run_2"))
                await reached.inside.runtime.end_all()
            assert seen[-1].payload.completed.error == "gateway_shutdown"  # type: ignore[attr-defined]


@pytest.mark.behaviour("lemon_gateway.20")
async def test_health_and_liveness_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 3.1, 11."""
    with anyio.fail_after(5):
        async with reaching(form) as reached:
            assert await reached.port.available()
            report = await reached.port.health()
            assert report == await reached.inside.runtime.health()
            assert report.bus_id == reached.inside.bus.id
            assert report.ok


@pytest.mark.behaviour("lemon_gateway.20", "lemon_gateway.22")
async def test_a_run_of_the_past_is_one_snapshot_in_every_form(form: Form) -> None:
    """Specification lemon_gateway 5.3: run history still answers with the completion."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5):
        async with reaching(form, ScriptedExecutor(answer_hello), clock=clock) as reached:
            await ended(reached)
            await clock.advance(700_000)
            if form == "tcp":
                # Whose run it was is forgotten, and this peer is no admin.
                assert await reached.port.get_run("run_1") is None
                return
            snapshot = await reached.port.get_run("run_1")
            assert snapshot is not None
            assert (snapshot.state, snapshot.accumulated_text) == ("terminal", "hello")
            async with aclosing(reached.port.subscribe("run_1")) as items:
                assert [item async for item in items] == [snapshot]
            assert isinstance(snapshot, RunSnapshot)
