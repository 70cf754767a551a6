"""Whatever happens in whatever order: a message serves one waiter, and none is lost."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.store import Store
from lemon_core.store.backend import Rows
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import FakeClock
from lemon_gateway.sms.inbox import Code, Outcome
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.sms_rig import delivery, serving_inbox

WAIT_MS = 1_000

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "again", "wait", "look", "leave", "claim", "turns", "time"]),
        st.integers(0, 7),
    ),
    max_size=40,
)


class YieldingBackend(MemoryBackend):
    """One whose answers take a turn of the loop, in which anything may happen."""

    async def get(self, table: str, key: bytes) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        return await super().get(table, key)

    async def list(self, table: str) -> Rows:
        rows = await super().list(table)
        await anyio.lowlevel.checkpoint()
        return rows

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        await anyio.lowlevel.checkpoint()
        swapped = await super().compare_and_swap(table, key, expected, new)
        with anyio.CancelScope(shield=True):  # a commit cannot be cancelled half-way
            await anyio.lowlevel.checkpoint()
        return swapped


class Play:
    """The steps of one example, and what came of them.

    `missed` are the messages that were stored when somebody had waited in vain.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.delivered: list[str] = []
        self.stored: set[str] = set()
        self.missed: set[str] = set()
        self.claimed: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def run(self, steps: list[Step]) -> None:
        store = Store(YieldingBackend())
        await store.open()
        async with serving_inbox(store, self.clock) as self.inbox:
            async with anyio.create_task_group() as self.tasks:
                for step, number in steps:
                    await self.take(step, number)
                await settle()
                await self.clock.advance(WAIT_MS)
                await settle()
            await settle()
            await self.check()

    async def take(self, step: str, number: int) -> None:
        match step:
            case "deliver":
                self.delivered.append(f"SM{len(self.delivered)}")
                await self.deliver(self.delivered[-1])
            case "again" if self.delivered:
                await self.deliver(self.delivered[number % len(self.delivered)])
            case "wait" | "look":
                self.tasks.start_soon(self.wait, f"w{len(self.scopes)}", step == "wait")
                await anyio.lowlevel.checkpoint()
            case "leave" if self.scopes:
                list(self.scopes.values())[number % len(self.scopes)].cancel()
            case "claim" if self.delivered:
                sid = self.delivered[number % len(self.delivered)]
                if await self.inbox.claim_message("by hand", sid) == "ok":
                    self.claimed.add(sid)
            case "turns":
                for _ in range(number):
                    await anyio.lowlevel.checkpoint()
            case "time":
                # At rest: a message that is on its way when the time is over may miss its waiter.
                await settle()
                await self.clock.advance(number * WAIT_MS // 4)

    async def deliver(self, sid: str) -> None:
        # The body tells the message: its code is its number.
        await self.inbox.ingest(delivery(sid, f"code {1000 + int(sid[2:])}"))
        self.stored.add(sid)

    async def wait(self, name: str, claim: bool) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            # After this assignment nothing can cancel what was received.
            self.ended[name] = await self.inbox.wait_for_code(name, timeout_ms=WAIT_MS, claim=claim)

    async def check(self) -> None:
        kept = {
            one.message_sid: one
            for one in await self.inbox.list_messages(include_claimed=True, limit=100)
        }
        assert sorted(kept) == sorted(self.delivered)
        assert self.inbox.waiter_count == 0
        got = {name: found for name, found in self.ended.items() if isinstance(found, Code)}
        for found in got.values():
            assert found.code == f"{1000 + int(found.message.message_sid[2:])}"
        owners = {sid: message.claimed_by for sid, message in kept.items() if message.claimed_by}
        claims = {
            found.message.message_sid: name
            for name, found in got.items()
            if found.message.claimed_by is not None
        }
        # Who claimed has it, and nothing is claimed for anybody who does not know.
        assert owners == {**dict.fromkeys(self.claimed, "by hand"), **claims}
        served = Counter(
            found.message.message_sid for found in got.values() if found.message.claimed_by
        )
        assert all(count == 1 for count in served.values())
        seen = {found.message.message_sid for found in got.values()}
        if not any(scope.cancel_called for scope in self.scopes.values()):
            assert self.missed <= seen | owners.keys()


@pytest.mark.behaviour("lemon_gateway.32")
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_in_any_order(steps: list[Step]) -> None:
    """Deliveries, waiters that come and go, claims by hand, and time."""
    anyio.run(Play().run, steps)
