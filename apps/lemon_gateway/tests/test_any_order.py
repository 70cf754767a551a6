"""Whatever happens in whatever order: every accepted run ends exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.events import Event, RunCompleted
from lemon_gateway.config import GatewaySettings
from lemon_gateway.executor import ExecutorError
from lemon_gateway.requests import EngineDelta
from lemon_gateway.tests.fakes import (
    Control,
    Gateway,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
    settle,
)

MAX_RUNS = 2
BEHAVIOURS = ("wait", "answer", "refuse", "crash", "nonsense")
Operation = tuple[str, int, str]
OPERATIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 3), st.sampled_from(BEHAVIOURS)),
    st.tuples(
        st.sampled_from(["complete", "cancel", "steer", "again", "say"]),
        st.integers(0, 12),
        st.just(""),
    ),
    st.tuples(st.sampled_from(["settle", "refuse"]), st.just(0), st.just("")),
)


class Story:
    """A gateway, the runs it accepted, and what a test does to them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.accepted: list[str] = []
        self.refusing = False

    async def do(self, operation: Operation) -> None:
        kind, number, behaviour = operation
        if kind == "submit":
            await self.submit(number, behaviour)
        elif kind == "settle":
            await settle()
        elif kind == "refuse" and number == 0 and len(self.accepted) > 8:
            await self.gateway.runtime.refuse()
            self.refusing = True
        elif number < len(self.accepted):
            await self.touch(kind, self.accepted[number])
        self.check_limits()

    async def submit(self, conversation: int, behaviour: str) -> None:
        if self.refusing:
            return
        run_id = f"run_{len(self.accepted)}"
        wanted = command(
            run_id, session_key=f"agent:a{conversation}:main", meta={"behaviour": behaviour}
        )
        await self.gateway.runtime.submit_execution(wanted)
        self.accepted.append(run_id)

    async def touch(self, kind: str, run_id: str) -> None:
        runtime = self.gateway.runtime
        control = self.gateway.executor.controls.get(run_id)
        if kind == "cancel":
            await runtime.cancel_by_run_id(run_id)
        elif kind == "steer":
            await runtime.steer(run_id, f"sub_{run_id}", "x", "redirect")
        elif kind == "complete" and control is not None:
            await control.complete("done")
        elif kind == "say" and control is not None:
            await control.say("word ")

    def check_limits(self) -> None:
        counts = self.gateway.runtime.scheduler.counts()
        assert counts.in_flight <= MAX_RUNS
        held, _ = self.gateway.runtime.lock.counts()
        assert held <= MAX_RUNS

    async def check_ends(self) -> None:
        runtime = self.gateway.runtime
        assert not runtime._registry.live
        assert runtime.scheduler.counts().in_flight == 0
        assert runtime.scheduler.worker_count() == 0
        assert runtime.lock.counts() == (0, 0)
        for run_id in self.accepted:
            events = await self.gateway.events(run_id)
            assert [event.meta["event_seq"] for event in events] == list(range(1, len(events) + 1))
            ends = [event for event in events if isinstance(event.payload, RunCompleted)]
            assert ends == events[-1:]
            check_deltas(events)
            record = await self.gateway.records.get(run_id)
            assert record is not None
            assert record.state == "finished"


def check_deltas(events: Sequence[Event]) -> None:
    seqs = [event.payload.seq for event in events if event.type == "delta"]  # type: ignore[attr-defined]
    assert seqs == list(range(1, len(seqs) + 1))


async def behave(control: Control) -> None:
    match control.request.meta["behaviour"]:
        case "answer":
            await answer_hello(control)
        case "refuse":
            raise ExecutorError("no", "not today")
        case "crash":
            raise RuntimeError("boom")
        case "nonsense":
            await control.sink.send(EngineDelta(control.ref, None))  # type: ignore[arg-type]


async def tell(operations: Sequence[Operation]) -> None:
    gateway_settings = GatewaySettings(node_id="n", max_concurrent_runs=MAX_RUNS)
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(behave), settings=gateway_settings) as gateway:
            story = Story(gateway)
            for operation in operations:
                await story.do(operation)
            await gateway.runtime.refuse()
            await gateway.runtime.end_all()
            await settle()
            await story.check_ends()


@given(st.lists(OPERATIONS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_every_accepted_run_ends_exactly_once(operations: list[Operation]) -> None:
    """Specification lemon_gateway 3.5, 3.2: one end each, never more slots than allowed."""
    asyncio.run(tell(operations))
