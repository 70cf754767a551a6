"""A node's approvals with everything around them, and what they tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from lemon_core.approvals import (
    TOPIC,
    ApprovalRequest,
    ApprovalsClosed,
    ApprovalTimeout,
    ExecApprovals,
)
from lemon_core.bus import Bus
from lemon_core.events import ApprovalResolved, Event, PendingApproval
from lemon_core.introspection import Introspection
from lemon_core.runtime import Runtime
from lemon_core.store import Store, StoreError
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock

KEY = "agent:coder:main"
ACTION: dict[str, object] = {"command": "rm -r build", "type": "shell"}


@dataclass
class Outcome:
    """How a request ended."""

    value: object = None
    ended: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class Desk:
    """A node's approvals and what was told about them."""

    store: Store
    bus: Bus = field(default_factory=Bus)
    clock: FakeClock = field(default_factory=FakeClock)
    node_id: str = "here"
    is_draining: bool = False
    counted: list[tuple[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        telemetry = Telemetry()
        telemetry.attach("lemon.approvals", self._count)
        self.grants = ExecApprovalStore(self.store)
        self.introspection = Introspection(self.store, self.clock)
        self.approvals = ExecApprovals(
            self.grants,
            self.bus,
            telemetry,
            self.introspection,
            self.clock,
            node_id=self.node_id,
            is_draining=lambda: self.is_draining,
        )

    def _count(self, name: str, _: Mapping[str, float], metadata: Mapping[str, object]) -> None:
        self.counted.append((name.rpartition(".")[2], metadata.get("decision")))

    async def ask(self, outcome: Outcome, request: ApprovalRequest) -> None:
        """A requester: what it gets, or what is raised, is the outcome."""
        try:
            outcome.value = await self.approvals.request(request)
        except (ApprovalTimeout, ApprovalsClosed, StoreError) as exc:
            outcome.value = exc
        finally:
            outcome.ended.set()

    async def answered(self, request: ApprovalRequest, decision: str) -> object:
        """What a requester gets whose question is answered with `decision`."""
        outcome = Outcome()
        async with self.listening() as heard, anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask, outcome, request)
            pending = await heard.question()
            assert await self.approvals.resolve(pending.id, decision)
        return outcome.value

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Heard]:
        with anyio.fail_after(5), self.bus.subscribe(TOPIC) as events:
            yield Heard(events)

    async def nothing_is_open(self) -> bool:
        return await self.approvals.pending_approvals() == []


@dataclass
class Heard:
    """What a listener of the topic gets."""

    events: Any

    async def next(self) -> Event:
        event: Event = await anext(self.events)
        return event

    async def question(self) -> PendingApproval:
        event = await self.next()
        assert event.type == "approval_requested"
        pending: PendingApproval = cast(Any, event.payload).pending
        return pending

    async def end(self) -> ApprovalResolved:
        event = await self.next()
        assert isinstance(event.payload, ApprovalResolved)
        return event.payload


def asking(**facts: Any) -> ApprovalRequest:
    return ApprovalRequest(
        **{"tool": "bash", "action": ACTION, "run_id": "run_1", "session_key": KEY, **facts}
    )


@asynccontextmanager
async def asks(runtime: Runtime) -> AsyncIterator[None]:
    """A component with a question that is open as long as it runs."""
    with runtime.bus.subscribe(TOPIC) as events:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.approvals.request, asking())
            await anext(events)
            yield
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def finds_nothing_open(runtime: Runtime) -> AsyncIterator[None]:
    """A component that starts only when no question is open."""
    assert await runtime.approvals.pending_approvals() == []
    yield
