"""Requests, answers, cancellations and time in any order (specification lemon_core 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.approvals import TOPIC
from lemon_core.events import ApprovalResolved
from lemon_core.store import Store
from lemon_core.store.backend import Write
from lemon_core.store.memory import MemoryBackend
from lemon_core.tests.approval_desk import Desk, Outcome, asking


class YieldingBackend(MemoryBackend):
    """Lets others run before and after each step, as a database in a thread does."""

    async def get(self, table: str, key: bytes) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        found = await super().get(table, key)
        await anyio.lowlevel.checkpoint()
        return found

    async def take(self, table: str, key: bytes) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        found = await super().take(table, key)
        await anyio.lowlevel.checkpoint()
        return found

    async def transaction(self, writes: Sequence[Write]) -> None:
        await anyio.lowlevel.checkpoint()
        await super().transaction(writes)
        await anyio.lowlevel.checkpoint()


class Race:
    """Steps in any order: requests, answers, cancellations and time."""

    def __init__(self) -> None:
        self.desk = Desk(Store(YieldingBackend()))
        self.outcomes: list[Outcome] = []
        self.scopes: list[anyio.CancelScope] = []
        self.known: list[str] = []
        self.wins: dict[str, list[str]] = {}

    async def ask(self, expires_in_ms: int | None) -> None:
        outcome, scope = Outcome(), anyio.CancelScope()
        self.outcomes.append(outcome)
        self.scopes.append(scope)
        with scope:
            await self.desk.ask(outcome, asking(expires_in_ms=expires_in_ms))

    async def answer(self, index: int, decision: str) -> None:
        for pending in await self.desk.approvals.pending_approvals():
            if pending.id not in self.known:
                self.known.append(pending.id)
        if self.known:
            approval_id = self.known[index % len(self.known)]
            if await self.desk.approvals.resolve(approval_id, decision):
                self.wins.setdefault(approval_id, []).append(decision)

    def cancel(self, index: int) -> None:
        if self.scopes:
            self.scopes[index % len(self.scopes)].cancel()


@asynccontextmanager
async def ends_of(race: Race) -> AsyncIterator[list[ApprovalResolved]]:
    """Filled with all ends that were published in the block when it is over."""
    ends: list[ApprovalResolved] = []
    with race.desk.bus.subscribe(TOPIC) as events:
        yield ends
        events.close()
        payloads = [event.payload for event in await events.receive_batch(limit=1_000)]
        ends += [payload for payload in payloads if isinstance(payload, ApprovalResolved)]


STEP = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([None, 10, 20])),
    st.tuples(st.just("answer"), st.integers(0, 3), st.sampled_from(["deny", "approve_once"])),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.sampled_from([5, 10])),
    st.tuples(st.just("turn")),
)


@pytest.mark.behaviour("lemon_core.21")
@given(steps=st.lists(STEP, max_size=25))
def test_every_question_has_one_end_and_none_is_left(steps: list[tuple[Any, ...]]) -> None:
    """Whatever asks, answers, is cancelled and expires in whichever order."""
    anyio.run(_play, steps)


async def _play(steps: list[tuple[Any, ...]]) -> None:
    race = Race()
    await race.desk.store.open()
    with anyio.fail_after(5):
        async with ends_of(race) as ends, anyio.create_task_group() as tasks:
            for name, *given_values in steps:
                match name:
                    case "ask":
                        tasks.start_soon(race.ask, *given_values)
                    case "answer":
                        # Two at once: only one of them may win.
                        tasks.start_soon(race.answer, *given_values)
                        tasks.start_soon(race.answer, *given_values)
                    case "cancel":
                        race.cancel(*given_values)
                    case "advance":
                        await race.desk.clock.advance(*given_values)
                    case _:
                        await anyio.lowlevel.checkpoint()
            await race.desk.clock.advance(0)
            for scope in race.scopes:
                scope.cancel()
    assert all(len(decisions) == 1 for decisions in race.wins.values())
    told = [end.approval_id for end in ends]
    assert len(told) == len(set(told))
    answered = {end.approval_id: [end.decision] for end in ends if end.decision != "timeout"}
    assert answered == race.wins
    assert await race.desk.nothing_is_open()
    assert race.desk.clock.sleepers == 0
