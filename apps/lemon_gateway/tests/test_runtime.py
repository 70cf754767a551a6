"""Submission, conversations, what is known of runs, and the end of the gateway."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from lemon_core.bridges import (
    EngineRuntime,
    ExecutionRejected,
    RunIdConflict,
    RunNotFound,
    RunSnapshot,
    SubmitReceipt,
)
from lemon_core.events import Completion
from lemon_core.execution_context import Workspace
from lemon_core.runs import InvalidCommand, MissingContext, MissingConversationKey
from lemon_core.store import StoreSettings, open_store
from lemon_core.testing import FakeClock
from lemon_gateway.config import GatewaySettings
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.run import Run
from lemon_gateway.runtime import Runtime
from lemon_gateway.tests.fakes import (
    NOW_MS,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
    settle,
)


def engine_runtime(runtime: Runtime) -> EngineRuntime:
    """The runtime is the port; mypy says so."""
    return runtime


@pytest.mark.behaviour("lemon_gateway.1")
async def test_incomplete_commands_are_refused_and_nothing_is_queued() -> None:
    """Specification lemon_gateway 1.1."""
    whole = command("run_1")
    broken = [
        (whole.model_copy(update={"conversation_key": None}), MissingConversationKey),
        (whole.model_copy(update={"execution_context": None}), MissingContext),
        (whole.model_copy(update={"run_id": "run_2"}), InvalidCommand),
        (whole.model_copy(update={"meta": {"odd": object()}}), InvalidCommand),
    ]
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            for wrong, error in broken:
                with pytest.raises(error):
                    await gateway.runtime.submit_execution(wrong)
            assert gateway.runtime.scheduler.worker_count() == 0
            assert gateway.runtime.journal.run_ids() == ()
            assert await gateway.runtime.get_run("run_1") is None


@pytest.mark.behaviour("lemon_gateway.1")
@pytest.mark.parametrize("selector", ["queue_mode", "engine"])
def test_a_request_takes_no_queue_mode_and_no_engine(selector: str) -> None:
    """Specification lemon_gateway 1.1: unknown fields such as engine are refused."""
    from pydantic import ValidationError

    from lemon_core.runs import ExecutionCommand

    whole = command("run_1")
    with pytest.raises(ValidationError):
        ExecutionCommand.model_validate({**whole.model_dump(), selector: "steer"})
    with pytest.raises(TypeError):
        ExecutionRequest(**{**whole.__dict__, selector: "steer"})


async def test_expired_and_foreign_contexts_are_refused() -> None:
    """Specification lemon_gateway 5.4: contexts are revalidated on arrival."""
    whole = command("run_1")
    context = whole.execution_context
    assert context is not None
    validity = context.validity.model_copy(update={"expires_at_ms": NOW_MS - 1})
    provenance = context.provenance.model_copy(update={"node_id": "node-2"})
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            for update in ({"validity": validity}, {"provenance": provenance}):
                wrong = context.model_copy(update=update)
                with pytest.raises(InvalidCommand, match="context of run run_1"):
                    await gateway.runtime.submit_execution(
                        whole.model_copy(update={"execution_context": wrong})
                    )


@pytest.mark.behaviour("lemon_gateway.2")
async def test_two_of_three_conversations_run_and_the_line_is_fifo() -> None:
    """Specification lemon_gateway 3.2, with max_concurrent_runs = 2."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            for number in range(1, 5):
                key = f"agent:a{number}:main"
                await gateway.runtime.submit_execution(command(f"run_{number}", session_key=key))
            await settle()
            assert gateway.executor.order == ["run_1", "run_2"]
            counts = gateway.runtime.scheduler.counts()
            assert (counts.in_flight, counts.waitq, counts.max) == (2, 2, 2)
            await gateway.executor.controls["run_2"].complete("b")
            await gateway.executor.run("run_3")
            await settle()
            assert gateway.executor.order == ["run_1", "run_2", "run_3"]
            await gateway.executor.controls["run_1"].complete("a")
            await gateway.executor.run("run_4")
            for number in (3, 4):
                await gateway.executor.controls[f"run_{number}"].complete("c")
                assert (await gateway.end(f"run_{number}")).ok
            await settle()
            assert gateway.runtime.scheduler.worker_count() == 0


@pytest.mark.behaviour("lemon_gateway.3")
async def test_one_conversation_runs_one_after_the_other() -> None:
    """Specification lemon_gateway 3.3: in submit order, with free slots left."""
    settings = GatewaySettings(node_id="n", max_concurrent_runs=8)
    with anyio.fail_after(5):
        async with running_gateway(settings=settings) as gateway:
            for number in (1, 2, 3):
                await gateway.runtime.submit_execution(command(f"run_{number}"))
            for number in (1, 2, 3):
                control = await gateway.executor.run(f"run_{number}")
                await settle()
                assert len(gateway.executor.order) == number
                await control.complete("x")
                await gateway.end(f"run_{number}")
            assert gateway.executor.order == ["run_1", "run_2", "run_3"]


@pytest.mark.behaviour("lemon_gateway.4")
async def test_one_run_id_runs_once() -> None:
    """Specification lemon_gateway 3.1: concurrently, while it runs, and after the end."""
    statuses: list[str] = []
    with anyio.fail_after(5):
        async with running_gateway() as gateway:

            async def submit() -> None:
                receipt = await gateway.runtime.submit_execution(command("run_1"))
                statuses.append(receipt.status)

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(submit)
            assert sorted(statuses) == ["accepted", *["duplicate"] * 4]
            control = await gateway.executor.run("run_1")
            receipt = await gateway.runtime.submit_execution(command("run_1"))
            assert receipt == SubmitReceipt("run_1", "duplicate", "node-1", gateway.runtime.epoch)
            await control.complete("once")
            await gateway.end("run_1")
            receipt = await gateway.runtime.submit_execution(command("run_1"))
            assert receipt.status == "already_completed"
            assert gateway.executor.order == ["run_1"]
            with pytest.raises(RunIdConflict):
                await gateway.runtime.submit_execution(command("run_1", "other prompt"))


@pytest.mark.behaviour("lemon_gateway.4")
async def test_a_different_command_under_a_live_run_id_is_a_conflict() -> None:
    """Specification lemon_gateway 3.1: same run_id, other command digest."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            with pytest.raises(RunIdConflict):
                await gateway.runtime.submit_execution(command("run_1", "something else"))
            # What a router derives anew after a restart is no other command.
            again = command("run_1", meta={"resent": True})
            receipt = await gateway.runtime.submit_execution(again)
            assert receipt.status == "duplicate"


@pytest.mark.behaviour("lemon_gateway.4")
async def test_a_run_is_known_after_its_journal_went() -> None:
    """Specification lemon_gateway 3.1: finished and still known from the RunStore."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello), clock=clock) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            before = await gateway.end("run_1")
            await clock.advance(700_000)
            assert not gateway.runtime.journal.known("run_1")
            receipt = await gateway.runtime.submit_execution(command("run_1"))
            assert receipt.status == "already_completed"
            with pytest.raises(RunIdConflict):
                await gateway.runtime.submit_execution(command("run_1", "other"))
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert (snapshot.state, snapshot.phase) == ("terminal", "completed")
            assert snapshot.terminal == before
            items = [item async for item in gateway.runtime.subscribe("run_1")]
            assert items == [snapshot]
            assert gateway.executor.order == ["run_1"]


async def test_a_lost_run_is_terminal_and_never_started_again() -> None:
    """Specification lemon_gateway 3.1: begun by a former process and without summary."""
    clock = FakeClock(NOW_MS)
    async with open_store(StoreSettings("memory"), clock) as store:
        with anyio.fail_after(5):
            async with running_gateway(clock=clock, store=store) as gateway:
                # The mark of a process that is gone: in the history, not in this one's memory.
                await gateway.records.begin("run_1", command("run_1").digest())
                gateway.records._records.clear()
                receipt = await gateway.runtime.submit_execution(command("run_1"))
                assert receipt.status == "already_completed"
                snapshot = await gateway.runtime.get_run("run_1")
                assert snapshot is not None
                assert snapshot.state == "terminal"
                assert snapshot.terminal is not None
                assert (snapshot.terminal.ok, snapshot.terminal.error) == (False, "run_lost")
                items = [item async for item in gateway.runtime.subscribe("run_1")]
                assert items == [snapshot]
                assert gateway.executor.order == []


async def test_unknown_runs() -> None:
    """Specification lemon_gateway 3.1: unknown runs are answered, not raised about."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.cancel_by_run_id("run_x")
            assert await gateway.runtime.get_run("run_x") is None
            outcome = await gateway.runtime.steer("run_x", "sub_1", "hi", "steer")
            assert (outcome.accepted, outcome.reason) == (False, "run_not_active")
            with pytest.raises(RunNotFound):
                await anext(gateway.runtime.subscribe("run_x"))


async def test_get_run_tells_queued_runs_too() -> None:
    """Specification lemon_gateway 3.1."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            await gateway.executor.run("run_1")
            await gateway.runtime.submit_execution(command("run_2"))
            snapshot = await gateway.runtime.get_run("run_2")
            assert snapshot == RunSnapshot(
                run_id="run_2",
                session_key="agent:default:main",
                state="queued",
                stream_epoch=gateway.runtime.epoch,
                phase="dispatched_to_gateway",
            )
            queued = gateway.runtime.list_runs(["queued"])
            assert [run.run_id for run in queued] == ["run_2"]
            assert gateway.runtime.list_runs(session_key="agent:other:main") == []


@pytest.mark.behaviour("lemon_gateway.12")
async def test_an_executor_that_turns_invalid_is_a_temporary_refusal() -> None:
    """Specification lemon_gateway 3.1: ExecutionRejected when the executor is invalid."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            runtime = gateway.runtime
            assert await runtime.available()
            gateway.executor.steer = None  # type: ignore[assignment,method-assign]
            assert not await runtime.available()
            with pytest.raises(ExecutionRejected, match="executor_missing_callbacks"):
                await runtime.submit_execution(command("run_1"))
            report = await runtime.health()
            assert [check.name for check in report.checks if not check.ok] == ["executor"]
            assert runtime.journal.run_ids() == ()


@pytest.mark.behaviour("lemon_gateway.12")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (None, "executor_not_configured"),
        ("no colon here", "invalid_executor"),
        ("lemon_gateway.nowhere:Executor", "executor_not_loadable"),
        ("lemon_gateway.requests:EngineDelta", "executor_missing_callbacks"),
    ],
)
async def test_a_run_whose_executor_is_gone_by_then_ends_structured(
    path: str | None, code: str
) -> None:
    """Specification lemon_gateway 3.5: validated again for every run."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await gateway.runtime.submit_execution(command("run_2"))
            used = gateway.runtime._executor
            used._resolved, used.path = None, path or ""
            await control.complete("done")
            events = await gateway.events("run_2")
            assert [event.type for event in events] == ["run_completed"]
            error = (await gateway.end("run_2")).error
            assert isinstance(error, Mapping)
            assert error["code"] == code
            assert (await gateway.end("run_1")).ok


@pytest.mark.behaviour("lemon_gateway.7")
@pytest.mark.parametrize("faults", [2, 3])
async def test_a_start_that_fails_is_tried_three_times_in_all(faults: int) -> None:
    """Specification lemon_gateway 3.3: the budget survives slot grants; one end, then the next."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello), clock=clock) as gateway:
            runtime, attempts = gateway.runtime, 0
            start = runtime.start

            def failing(request: ExecutionRequest, slot_id: int) -> Run:
                nonlocal attempts
                if request.run_id == "run_1":
                    attempts += 1
                    if attempts <= faults:
                        raise OSError("no process")
                return start(request, slot_id)

            runtime.start = failing  # type: ignore[method-assign]
            await runtime.submit_execution(command("run_1"))
            await runtime.submit_execution(command("run_2"))
            await settle()
            await clock.advance(100)
            await clock.advance(200)
            events = await gateway.events("run_1")
            completed = await gateway.end("run_1")
            assert [event.type for event in events].count("run_completed") == 1
            assert attempts == 3
            if faults == 3:
                assert [event.type for event in events] == ["run_completed"]
                assert completed.error == {
                    "code": "run_start_failed",
                    "message": "the run did not start in 3 attempts",
                    "detail": {"attempts": 3, "reason": "OSError: no process"},
                }
                record = await gateway.records.get("run_1")
                assert record is not None
                assert record.summary is not None
            else:
                assert completed.answer == "hello"
            assert (await gateway.end("run_2")).answer == "hello"
            assert gateway.executor.order == (["run_2"] if faults == 3 else ["run_1", "run_2"])
            # Three grants for the first run, one for the second.
            assert len(gateway.numbers("lemon.gateway.scheduler.slot_granted")) == 4


@pytest.mark.behaviour("lemon_gateway.8")
async def test_an_over_age_owner_is_told_by_telemetry() -> None:
    """Specification lemon_gateway 3.4: over_age_live_owner, and the waiter still waits."""
    clock = FakeClock(NOW_MS)
    settings = GatewaySettings(node_id="n", engine_lock_timeout_ms=10**9)
    with anyio.fail_after(5):
        async with running_gateway(clock=clock, settings=settings) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            other = command("run_2", conversation=("resume", "lemon", "sess_x"))
            await gateway.runtime.submit_execution(other)
            await settle()
            await clock.advance(330_000)
            name = "lemon.gateway.engine_lock.over_age_live_owner"
            told = [(dict(n), dict(m)) for emitted, n, m in gateway.emitted if emitted == name]
            numbers = {"count": 1, "age_ms": 330_000, "waiters": 1}
            assert told == [(numbers, {"key_kind": "session", "run_id": "run_1"})]
            waiting = await gateway.runtime.get_run("run_2")
            assert waiting is not None
            assert waiting.state == "waiting_lock"
            await control.complete("done")
            assert (await gateway.end("run_1")).ok
            await gateway.executor.run("run_2")


async def test_a_run_may_not_leave_the_roots_of_its_context() -> None:
    """Specification lemon_gateway 3.5: workspace_escape, the executor is never called."""
    workspace = Workspace(cwd="/tmp", roots=("/tmp",))
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(
                command("run_1", cwd="/etc", workspace=workspace)
            )
            assert [e.type for e in await gateway.events("run_1")] == ["run_completed"]
            error = (await gateway.end("run_1")).error
            assert isinstance(error, Mapping)
            assert error["code"] == "workspace_escape"
            assert gateway.executor.order == []


@pytest.mark.behaviour("lemon_gateway.41")
async def test_shutdown_ends_queued_and_live_runs_and_subscribers_see_it() -> None:
    """Specification lemon_gateway 12: refuse new work, end live runs as gateway_shutdown."""
    ended: dict[str, Completion] = {}
    with anyio.fail_after(5):
        async with running_gateway() as gateway, anyio.create_task_group() as tasks:

            async def watch(run_id: str) -> None:
                ended[run_id] = await gateway.end(run_id)

            for number in (1, 2):
                await gateway.runtime.submit_execution(command(f"run_{number}"))
                tasks.start_soon(watch, f"run_{number}")
            control = await gateway.executor.run("run_1")
            await control.say("half an ans")
            await settle()
            await gateway.runtime.refuse()
            with pytest.raises(ExecutionRejected, match="shutting down"):
                await gateway.runtime.submit_execution(command("run_3"))
            # What is already here is still answered.
            receipt = await gateway.runtime.submit_execution(command("run_1"))
            assert receipt.status == "duplicate"
            await gateway.runtime.end_all()
            await settle()
            assert {run_id: done.error for run_id, done in ended.items()} == {
                "run_1": "gateway_shutdown",
                "run_2": "gateway_shutdown",
            }
            assert ended["run_1"].answer == "half an ans"
            assert control.cancels == 1
            for run_id in ended:
                record = await gateway.records.get(run_id)
                assert record is not None
                assert record.state == "finished"


async def test_leaving_the_block_without_a_drain_ends_live_runs_too() -> None:
    """Specification lemon_gateway 3.5: application shutdown finalizes live runs."""
    clock = FakeClock(NOW_MS)
    async with open_store(StoreSettings("memory"), clock) as store:
        with anyio.fail_after(5):
            async with running_gateway(clock=clock, store=store) as gateway:
                await gateway.runtime.submit_execution(command("run_1"))
                await gateway.executor.run("run_1")
            record = await gateway.records.get("run_1")
            assert record is not None
            assert record.summary is not None
            completed = record.summary["completed"]
            assert isinstance(completed, Mapping)
            assert completed["error"] == "gateway_shutdown"
