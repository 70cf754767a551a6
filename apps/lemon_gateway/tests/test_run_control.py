"""Cancel and steer, at every moment of a run's life."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.bridges import SteerOutcome
from lemon_core.events import Event
from lemon_core.resume import ResumeToken
from lemon_gateway.config import GatewaySettings
from lemon_gateway.engine_lock import lock_key
from lemon_gateway.tests.fakes import (
    Control,
    ScriptedExecutor,
    command,
    request,
    running_gateway,
    settle,
)


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


@pytest.mark.behaviour("lemon_gateway.14")
@pytest.mark.parametrize("again", [False, True])
async def test_cancel_of_a_running_run(again: bool) -> None:
    """Specification lemon_gateway 3.7: one end, executor.cancel once, text and token kept."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await control.started("sess_1")
            await control.say("so far")
            await settle()
            await gateway.runtime.cancel_by_run_id("run_1", "interrupted")
            if again:
                await gateway.runtime.cancel_by_run_id("run_1", "new_session")
            events = await gateway.events("run_1")
            await control.complete("too late")
            await gateway.runtime.cancel_by_run_id("run_1", "aborted")
            await settle()
            assert await gateway.events("run_1") == events
            assert types(events) == ["run_started", "engine_started", "delta", "run_completed"]
            completed = await gateway.end("run_1")
            assert (completed.ok, completed.error, completed.answer) == (
                False,
                "interrupted",
                "so far",
            )
            assert completed.resume == ResumeToken(engine="lemon", value="sess_1")
            assert control.cancels == 1
            assert gateway.runtime.scheduler.counts().in_flight == 0
            assert gateway.runtime.lock.counts() == (0, 0)
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.phase == "aborted"


@pytest.mark.behaviour("lemon_gateway.10", "lemon_gateway.14")
async def test_cancel_while_waiting_for_the_lock() -> None:
    """Specification lemon_gateway 3.7: the waiter is withdrawn."""
    settings = GatewaySettings(node_id="node-1")
    with anyio.fail_after(5):
        async with running_gateway(settings=settings) as gateway:
            lease = await gateway.runtime.lock.acquire(lock_key(request("run_0")), "run_0")
            await gateway.runtime.submit_execution(command("run_1"))
            await settle()
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.state == "waiting_lock"
            await gateway.runtime.cancel_by_run_id("run_1")
            events = await gateway.events("run_1")
            assert types(events) == ["run_completed"]
            assert (await gateway.end("run_1")).error == "user_requested"
            await settle()
            assert gateway.runtime.lock.counts() == (1, 0)
            assert gateway.runtime.scheduler.counts().in_flight == 0
            assert gateway.executor.order == []
            gateway.runtime.lock.release(lease)


@pytest.mark.behaviour("lemon_gateway.14")
async def test_cancel_while_queued() -> None:
    """Specification lemon_gateway 3.1: removed from its worker and ended with that reason."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            for number in (1, 2, 3):
                await gateway.runtime.submit_execution(command(f"run_{number}"))
            first = await gateway.executor.run("run_1")
            await gateway.runtime.cancel_by_run_id("run_2", "new_session")
            events = await gateway.events("run_2")
            assert types(events) == ["run_completed"]
            assert [event.meta["event_seq"] for event in events] == [1]
            assert (await gateway.end("run_2")).error == "new_session"
            await first.complete("1")
            third = await gateway.executor.run("run_3")
            await third.complete("3")
            assert (await gateway.end("run_3")).ok
            assert gateway.executor.order == ["run_1", "run_3"]
            assert first.cancels == 0


async def test_cancel_of_a_starting_run_ends_it() -> None:
    """Specification lemon_gateway 3.7: also while start_run has not returned."""
    with anyio.fail_after(5):

        async def hang(_: Control) -> None:
            await anyio.sleep_forever()

        async with running_gateway(ScriptedExecutor(hang)) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            await gateway.executor.run("run_1")
            await gateway.runtime.cancel_by_run_id("run_1")
            assert types(await gateway.events("run_1")) == ["run_started", "run_completed"]
            assert (await gateway.end("run_1")).error == "user_requested"


async def test_an_executor_that_breaks_in_cancel_changes_nothing() -> None:
    """Specification lemon_gateway 3.7: errors of executor.cancel are swallowed."""

    class Breaking(ScriptedExecutor):
        async def cancel(self, control: object) -> None:
            await super().cancel(control)
            raise RuntimeError("cannot stop")

    with anyio.fail_after(5):
        async with running_gateway(Breaking()) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await gateway.runtime.cancel_by_run_id("run_1")
            assert (await gateway.end("run_1")).error == "user_requested"
            assert control.cancels == 1


@pytest.mark.behaviour("lemon_gateway.15")
async def test_steer_before_start_while_running_and_after_the_end() -> None:
    """Specification lemon_gateway 3.6."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            steer = gateway.runtime.steer
            assert (await steer("run_1", "sub_0", "x", "steer")).reason == "run_not_active"
            lease = await gateway.runtime.lock.acquire(lock_key(request("run_0")), "run_0")
            await gateway.runtime.submit_execution(command("run_1"))
            await settle()
            early = await steer("run_1", "sub_1", "early", "steer")
            assert (early.accepted, early.reason) == (False, "run_not_active")
            gateway.runtime.lock.release(lease)
            control = await gateway.executor.run("run_1")
            await settle()
            assert (await steer("run_1", "sub_2", "go left", "steer")).accepted
            assert (await steer("run_1", "sub_3", "later", "steer_backlog")).accepted
            assert (await steer("run_1", "sub_4", "stop that", "redirect")).accepted
            assert (control.steers, control.redirects) == (["go left", "later"], ["stop that"])
            await control.complete("done")
            await gateway.end("run_1")
            late = await steer("run_1", "sub_5", "late", "steer")
            assert (late.accepted, late.reason) == (False, "run_not_active")
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.applied_steers == ("sub_2", "sub_3", "sub_4")


@pytest.mark.behaviour("lemon_gateway.15")
async def test_redirect_falls_back_to_steer_only_when_unsupported() -> None:
    """Specification lemon_gateway 3.6."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await settle()
            steer = gateway.runtime.steer
            gateway.executor.redirect_result = "unsupported"
            assert (await steer("run_1", "sub_1", "a", "redirect")).accepted
            assert control.steers == ["a"]
            gateway.executor.redirect_result = "error"
            failed = await steer("run_1", "sub_2", "b", "redirect")
            assert (failed.accepted, failed.reason) == (False, "error")
            gateway.executor.steer_result = "unsupported"
            refused = await steer("run_1", "sub_3", "c", "steer")
            assert (refused.accepted, refused.reason) == (False, "unsupported")
            assert control.steers == ["a", "c"]


@pytest.mark.behaviour("lemon_gateway.15")
async def test_a_steer_that_raises_is_rejected_and_the_run_goes_on() -> None:
    """Specification lemon_gateway 2: control calls never raise into the run."""

    class Raising(ScriptedExecutor):
        async def steer(self, control: object, text: str) -> object:  # type: ignore[override]
            raise RuntimeError("no ears")

    with anyio.fail_after(5):
        async with running_gateway(Raising()) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await settle()
            outcome = await gateway.runtime.steer("run_1", "sub_1", "x", "steer")
            assert (outcome.accepted, outcome.reason) == (False, "error")
            await control.complete("fine")
            assert (await gateway.end("run_1")).answer == "fine"


@pytest.mark.behaviour("lemon_gateway.15")
async def test_one_submission_is_applied_once_also_at_the_same_time() -> None:
    """Specification lemon_gateway 3.6: a repeated request returns the first outcome."""
    gate = anyio.Event()

    class Slow(ScriptedExecutor):
        async def steer(self, control: object, text: str) -> object:  # type: ignore[override]
            await gate.wait()
            return await super().steer(control, text)

    with anyio.fail_after(5):
        async with running_gateway(Slow()) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            control = await gateway.executor.run("run_1")
            await settle()
            outcomes: list[SteerOutcome] = []

            async def steer() -> None:
                outcomes.append(await gateway.runtime.steer("run_1", "sub_1", "once", "steer"))

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(steer)
                await settle()
                gate.set()
            assert [outcome.accepted for outcome in outcomes] == [True, True, True]
            assert control.steers == ["once"]
            await control.complete("done")
            await gateway.end("run_1")
            assert (await gateway.runtime.steer("run_1", "sub_1", "once", "steer")).accepted
