"""What goes wrong in the middle of a run costs that run one end, and the conversation nothing."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.events import Completion, RunCompleted
from lemon_core.testing import FakeClock
from lemon_gateway.tests.fakes import (
    NOW_MS,
    Control,
    Gateway,
    ScriptedExecutor,
    command,
    running_gateway,
    settle,
)


async def provider_gone(control: Control) -> None:
    """The model's connection drops on every try, and the executor says so."""
    await control.started("sess_1")
    await control.say("I will ")
    gone: dict[str, object] = {"code": "provider_unavailable", "message": "connection reset"}
    await control.complete(ok=False, error=gone)


async def executor_gone(control: Control) -> None:
    """The executor's own task ends with the connection, without a word."""
    await control.started("sess_1")
    await control.say("I will ")


async def next_message(gateway: Gateway, run_id: str) -> Completion:
    """The next message of the conversation, answered."""
    gateway.executor.script = gateway.executor.done = None
    await gateway.runtime.submit_execution(command(run_id))
    await (await gateway.executor.run(run_id)).complete("answer")
    return await gateway.end(run_id)


@pytest.mark.behaviour("lemon_gateway.103")
@pytest.mark.parametrize("outage", [provider_gone, executor_gone])
async def test_an_outage_in_mid_turn_is_one_end_and_the_next_messages_run(
    outage: object,
) -> None:
    """One terminal event with a reason, slot and lock free, two more messages answered."""
    clock, done = FakeClock(NOW_MS), anyio.Event()
    executor = ScriptedExecutor(outage)  # type: ignore[arg-type]
    if outage is executor_gone:
        executor.done = lambda _: done.wait()
    with anyio.fail_after(5):
        async with running_gateway(executor, clock=clock) as gateway:
            await gateway.runtime.submit_execution(command("run_1"))
            await executor.run("run_1")
            await settle()
            done.set()
            await settle()
            await clock.advance(1_000)
            events = await gateway.events("run_1")
            ends = [event for event in events if isinstance(event.payload, RunCompleted)]
            assert ends == events[-1:]
            end = await gateway.end("run_1")
            assert (end.ok, end.answer) == (False, "I will ")
            assert end.error in (
                {"code": "provider_unavailable", "message": "connection reset"},
                "executor_exited_without_completion",
            )
            assert gateway.runtime.lock.counts() == (0, 0)
            assert gateway.runtime.scheduler.counts().in_flight == 0
            for run_id in ("run_2", "run_3"):
                assert (await next_message(gateway, run_id)).answer == "answer"
