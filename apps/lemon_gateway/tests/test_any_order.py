"""Whatever happens in whatever order: every accepted run ends exactly once.

Conversations 3 and 4 are two that mean one session, so their runs wait for each other's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.approvals import TOPIC
from lemon_core.bus import run_topic
from lemon_core.events import ApprovalRequested, Event, PendingApproval, RunCompleted
from lemon_core.runs import ExecutionCommand
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
LOCK_TIMEOUT_MS = 1_000
BEHAVIOURS = ("wait", "answer", "refuse", "crash", "nonsense")
Operation = tuple[str, int, str]
OPERATIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 4), st.sampled_from(BEHAVIOURS)),
    st.tuples(
        st.sampled_from(["complete", "cancel", "steer", "again", "say", "ask", "task"]),
        st.integers(0, 12),
        st.just(""),
    ),
    st.tuples(st.sampled_from(["settle", "refuse", "wait"]), st.just(0), st.just("")),
)


class Story:
    """A gateway, the runs it accepted, and what a test does to them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.accepted: list[str] = []
        self.commands: dict[str, ExecutionCommand] = {}
        self.ended: dict[str, int] = {}
        self.refusing = False

    async def do(self, operation: Operation) -> None:
        kind, number, behaviour = operation
        if kind == "submit":
            await self.submit(number, behaviour)
        elif kind == "settle":
            await settle()
        elif kind == "wait":
            await self.gateway.clock.advance(LOCK_TIMEOUT_MS)  # type: ignore[attr-defined]
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
            run_id,
            session_key=f"agent:a{min(conversation, 3)}:main",
            conversation=("session", f"conversation {conversation}"),
            meta={"behaviour": behaviour},
        )
        await self.gateway.runtime.submit_execution(wanted)
        self.accepted.append(run_id)
        self.commands[run_id] = wanted

    async def touch(self, kind: str, run_id: str) -> None:
        runtime = self.gateway.runtime
        control = self.gateway.executor.controls.get(run_id)
        if kind == "cancel":
            await runtime.cancel_by_run_id(run_id)
        elif kind == "steer":
            await runtime.steer(run_id, f"sub_{run_id}", "x", "redirect")
        elif kind == "again":
            await self.submit_again(run_id)
        elif kind == "ask":
            question = PendingApproval(id=f"apr_{run_id}", tool="bash", run_id=run_id)
            asked = ApprovalRequested(approval_id=question.id, pending=question)
            self.gateway.bus.publish_event(TOPIC, "approval_requested", asked, {"run_id": run_id})
        elif kind == "task":
            task = {"task_id": "t1"}
            self.gateway.bus.publish_event(run_topic(run_id), "task_started", task)
        elif kind == "complete" and control is not None:
            await control.complete("done")
        elif kind == "say" and control is not None:
            await control.say("word ")

    async def submit_again(self, run_id: str) -> None:
        """A known run id runs nothing, whatever state its run is in."""
        known = self.commands[run_id]
        receipt = await self.gateway.runtime.submit_execution(known)
        live = self.gateway.runtime.journal.is_live(run_id)
        assert receipt.status == ("duplicate" if live else "already_completed")

    def check_limits(self) -> None:
        runtime = self.gateway.runtime
        assert runtime.scheduler.counts().in_flight <= MAX_RUNS
        workers = [grant.worker for grant in runtime.scheduler._slots.in_flight.values()]
        assert len(workers) == len(set(workers)), "one slot per generation"
        held, _ = runtime.lock.counts()
        assert held <= MAX_RUNS
        for run_id in self.accepted:
            self.check_end(run_id)

    def check_end(self, run_id: str) -> None:
        """A run that has ended stays as it was."""
        journal = self.gateway.runtime.journal
        last = journal.last_seq(run_id)
        if run_id in self.ended:
            assert last == self.ended[run_id], "something followed the end"
        elif not journal.is_live(run_id):
            self.ended[run_id] = last

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
    gateway_settings = GatewaySettings(
        node_id="n", max_concurrent_runs=MAX_RUNS, engine_lock_timeout_ms=LOCK_TIMEOUT_MS
    )
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
