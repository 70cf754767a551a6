"""The inbox: who gets which message (specification lemon_gateway 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from lemon_core.store import Store, StoreSettings, StoreUnavailable, open_store
from lemon_core.store.codec import Key
from lemon_core.store.core import Absent, Items
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import FakeClock
from lemon_gateway.sms.inbox import (
    CLEANUP_INTERVAL_MS,
    LOOK_AGAIN_MS,
    LOOK_LIMIT_MS,
    MAX_WAITERS,
    RETRY_MS,
    Code,
    Inbox,
    Outcome,
)
from lemon_gateway.sms.messages import MessageFilter
from lemon_gateway.sms.records import TABLE, SmsRecords
from lemon_gateway.tests.fakes import settle
from lemon_gateway.tests.sms_rig import NUMBER, TTL_MS, delivery, serving_inbox

pytestmark = pytest.mark.anyio

S1, S2, S3 = "agent:a:main", "agent:b:main", "agent:c:main"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Store]:
    path = tmp_path / "store.db" if request.param == "sqlite" else None
    async with open_store(StoreSettings(request.param, path), clock) as opened:
        yield opened


@pytest.fixture
async def inbox(store: Store, clock: FakeClock) -> AsyncIterator[Inbox]:
    async with serving_inbox(store, clock) as serving:
        yield serving


class Waiting:
    """Callers of `wait_for_code` that wait at the same time; `outcomes` in the order of ending."""

    def __init__(self, inbox: Inbox, tasks: anyio.abc.TaskGroup) -> None:
        self._inbox, self._tasks = inbox, tasks
        self.outcomes: list[tuple[str, Outcome]] = []
        self.scopes: dict[str, anyio.CancelScope] = {}
        self._told = anyio.Event()

    async def start(self, name: str, session_key: str = "", **kwargs: object) -> None:
        """A caller called `name`, which is in line, and past what is stored, when this returns."""
        await self.queue(name, session_key, **kwargs)
        await self._inbox._waiters[-1].looked.wait()
        await settle()

    async def queue(self, name: str, session_key: str = "", **kwargs: object) -> None:
        """A caller called `name`, which is in line when this returns."""
        count = self._inbox.waiter_count
        self._tasks.start_soon(self._wait, name, session_key or name, kwargs)
        while self._inbox.waiter_count == count:
            await anyio.lowlevel.checkpoint()

    async def _wait(self, name: str, session_key: str, kwargs: dict[str, object]) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            outcome = await self._inbox.wait_for_code(session_key, **kwargs)  # type: ignore[arg-type]
            self.outcomes.append((name, outcome))
            self._told.set()

    async def until(self, count: int) -> list[tuple[str, str]]:
        """The first `count` outcomes, as code or failure."""
        while len(self.outcomes) < count:
            self._told = anyio.Event()
            await self._told.wait()
        return [(name, _short(outcome)) for name, outcome in self.outcomes]


def _short(outcome: Outcome) -> str:
    return outcome.code if isinstance(outcome, Code) else outcome


@pytest.fixture
async def waiting(inbox: Inbox) -> AsyncIterator[Waiting]:
    async with anyio.create_task_group() as tasks:
        yield Waiting(inbox, tasks)
        tasks.cancel_scope.cancel()


# --- messages ---


async def test_a_delivery_is_stored_once(inbox: Inbox, store: Store, clock: FakeClock) -> None:
    """By its sid: another delivery of it changes nothing, however it looks."""
    assert await inbox.ingest(delivery("SM1", "code 1111")) == "stored"
    before = await store.load(TABLE, "SM1")
    await clock.advance(5)
    assert await inbox.ingest(delivery("SM1", "code 2222")) == "duplicate"
    assert await inbox.ingest([("Body", "code 3333")]) == "missing_message_sid"
    assert await store.load_all(TABLE) == [("SM1", before)]


async def test_lists_are_newest_first_and_hide_what_is_claimed(
    inbox: Inbox, clock: FakeClock
) -> None:
    """Unless it is asked for; a limit cuts."""
    for number in range(25):
        await inbox.ingest(delivery(f"SM{number}", f"code {1000 + number}"))
        await clock.advance(1)
    await inbox.claim_message(S1, "SM24")

    async def listed(asks: MessageFilter | None = None, **kwargs: object) -> list[str]:
        found = await inbox.list_messages(asks, **kwargs)  # type: ignore[arg-type]
        return [one.message_sid for one in found]

    assert await listed() == [f"SM{number}" for number in range(23, 3, -1)]
    assert await listed(include_claimed=True, limit=2) == ["SM24", "SM23"]
    assert await listed(include_claimed=True, claimed_by=S1) == ["SM24"]
    assert await listed(include_claimed=True, claimed_by=S2) == []
    assert await listed(limit=0) == []
    assert await listed(MessageFilter(body_contains="1007")) == ["SM7"]
    assert await listed(MessageFilter(to="+1")) == []


@pytest.mark.behaviour("lemon_gateway.32")
async def test_a_claim_has_one_winner(inbox: Inbox, store: Store) -> None:
    """Of any at once; the winner may repeat it, and a blank session has a name too."""
    await inbox.ingest(delivery("SM1", "code 1111"))
    outcomes: dict[str, str] = {}

    async def claim(session_key: str) -> None:
        outcomes[session_key] = await inbox.claim_message(session_key, "SM1")

    async with anyio.create_task_group() as tasks:
        for session_key in (S1, S2, S3):
            tasks.start_soon(claim, session_key)
    assert sorted(outcomes.values()) == ["already_claimed", "already_claimed", "ok"]
    (winner,) = [key for key, outcome in outcomes.items() if outcome == "ok"]
    assert await inbox.claim_message(winner, "SM1") == "ok"
    kept = await SmsRecords(store, FakeClock()).load("SM1")
    assert kept is not None
    assert (kept.claimed_by, kept.claimed_at_ms) == (winner, FakeClock().now_ms())
    assert await inbox.claim_message(S1, "SM9") == "not_found"
    await inbox.ingest(delivery("SM2", "code 2222"))
    assert await inbox.claim_message("  ", "SM2") == "ok"
    assert await inbox.claim_message("unknown", "SM2") == "ok"


@pytest.mark.behaviour("lemon_gateway.32")
async def test_old_messages_go(inbox: Inbox, clock: FakeClock) -> None:
    """Every ten minutes, what is older than the time to live; a claim does not keep it."""
    await inbox.ingest(delivery("SM1", "code 1111"))
    await inbox.claim_message(S1, "SM1")
    await clock.advance(CLEANUP_INTERVAL_MS // 2)
    await inbox.ingest(delivery("SM2", "code 2222"))

    async def kept() -> list[str]:
        await settle()
        found = await inbox.list_messages(include_claimed=True)
        return [one.message_sid for one in found]

    await clock.advance(TTL_MS - CLEANUP_INTERVAL_MS // 2)
    await clock.wait_for_sleepers()
    assert await kept() == ["SM2", "SM1"]  # the one is a day old to the millisecond
    await clock.advance(CLEANUP_INTERVAL_MS)
    with anyio.fail_after(5):
        while await kept() != []:
            await anyio.lowlevel.checkpoint()


async def test_a_damaged_record_hides_no_other(inbox: Inbox, store: Store) -> None:
    """It is reported and passed over."""
    await store.put(TABLE, "SM0", {"message_sid": "SM0"})
    await inbox.ingest(delivery("SM1", "code 1111"))
    assert [one.message_sid for one in await inbox.list_messages()] == ["SM1"]


# --- codes ---


async def test_the_newest_stored_code_is_there_at_once(inbox: Inbox, clock: FakeClock) -> None:
    """Unclaimed, to the inbox's number, and with a code in it; it is claimed then."""
    for sid, body in (("SM1", "code 1111"), ("SM2", "code 2222"), ("SM3", "no code")):
        await inbox.ingest(delivery(sid, body))
        await clock.advance(1)
    await inbox.ingest(delivery("SM4", "code 4444", to="+1999"))
    first = await inbox.wait_for_code(S1, timeout_ms=0)
    assert isinstance(first, Code)
    assert (first.code, first.message.message_sid, first.message.claimed_by) == ("2222", "SM2", S1)
    second = await inbox.wait_for_code(S2, timeout_ms=0)
    assert isinstance(second, Code)
    assert second.code == "1111"
    elsewhere = await inbox.wait_for_code(S2, timeout_ms=0, asks=MessageFilter(to="+1999"))
    assert isinstance(elsewhere, Code)
    assert elsewhere.code == "4444"


async def test_what_is_not_claimed_stays_for_the_next(inbox: Inbox) -> None:
    """A look takes nothing away."""
    await inbox.ingest(delivery("SM1", "code 1111"))
    for _ in range(2):
        found = await inbox.wait_for_code(S1, timeout_ms=0, claim=False)
        assert isinstance(found, Code)
        assert (found.code, found.message.claimed_by) == ("1111", None)
    assert [one.message_sid for one in await inbox.list_messages()] == ["SM1"]


@pytest.mark.behaviour("lemon_gateway.32")
@pytest.mark.parametrize("claim", [True, False])
async def test_one_message_serves_the_first_waiter_in_line(
    inbox: Inbox, waiting: Waiting, claim: bool
) -> None:
    """And nobody else; the next message serves the next."""
    for name in (S1, S2, S3):
        await waiting.start(name, claim=claim)
    await inbox.ingest(delivery("SM1", "code 1111"))
    assert await waiting.until(1) == [(S1, "1111")]
    await settle()
    assert inbox.waiter_count == 2
    await inbox.ingest(delivery("SM1", "code 1111"))
    await inbox.ingest(delivery("SM2", "no code"))
    await inbox.ingest(delivery("SM3", "code 3333"))
    await inbox.ingest(delivery("SM4", "code 4444"))
    assert (await waiting.until(3))[1:] == [(S2, "3333"), (S3, "4444")]
    claims = {
        one.message_sid: one.claimed_by for one in await inbox.list_messages(include_claimed=True)
    }
    expected = {"SM1": S1, "SM2": None, "SM3": S2, "SM4": S3}
    assert claims == (expected if claim else dict.fromkeys(expected))


async def test_a_message_goes_to_the_first_it_fits(inbox: Inbox, waiting: Waiting) -> None:
    """Those before it in line wait on, with their places."""
    await waiting.start("bank", asks=MessageFilter(from_contains="bank"))
    await waiting.start("letters", pattern=r"[A-Z]{4}")
    await waiting.start("any")
    await inbox.ingest(delivery("SM1", "code 1111"))
    assert await waiting.until(1) == [("any", "1111")]
    await inbox.ingest(delivery("SM2", "code 2222 ABCD", sender="MyBank"))
    assert (await waiting.until(2))[1:] == [("bank", "2222")]
    await inbox.ingest(delivery("SM3", "code 3333 ABCD", sender="MyBank"))
    assert (await waiting.until(3))[2:] == [("letters", "ABCD")]


async def test_two_waiters_of_one_session_get_two_messages(inbox: Inbox, waiting: Waiting) -> None:
    """Though the session owns the first one already."""
    await waiting.start("first", S1)
    await waiting.start("second", S1)
    await inbox.ingest(delivery("SM1", "code 1111"))
    await waiting.until(1)
    await settle()
    assert inbox.waiter_count == 1
    await inbox.ingest(delivery("SM2", "code 2222"))
    assert await waiting.until(2) == [("first", "1111"), ("second", "2222")]


async def test_time_runs_out(inbox: Inbox, waiting: Waiting, clock: FakeClock) -> None:
    """A message that comes later is for somebody else."""
    await waiting.start(S1, timeout_ms=1_000)
    await clock.advance(999)
    assert waiting.outcomes == []
    await clock.advance(1)
    assert await waiting.until(1) == [(S1, "timeout")]
    await inbox.ingest(delivery("SM1", "code 1111"))
    await settle()
    assert [one.claimed_by for one in await inbox.list_messages()] == [None]


@pytest.mark.behaviour("lemon_gateway.32")
async def test_a_waiter_whose_caller_is_gone_gets_nothing(inbox: Inbox, waiting: Waiting) -> None:
    """The next in line does."""
    await waiting.start(S1)
    await waiting.start(S2)
    waiting.scopes[S1].cancel()
    await settle()
    assert inbox.waiter_count == 1
    await inbox.ingest(delivery("SM1", "code 1111"))
    assert await waiting.until(1) == [(S2, "1111")]


async def test_not_everybody_can_wait(inbox: Inbox, waiting: Waiting) -> None:
    """Above a number callers are turned away at once."""
    for number in range(MAX_WAITERS):
        await waiting.start(f"w{number}")
    assert await inbox.wait_for_code(S1) == "too_many_waiters"


async def test_a_pattern_that_is_always_slow_ends_its_wait(inbox: Inbox, waiting: Waiting) -> None:
    """One slow message is passed over, and a neighbour's wait goes on as if nothing had been."""
    await waiting.start("slow", pattern=r"(a+)+$")
    await waiting.start("next", asks=MessageFilter(body_contains="code"))
    hostile = "a" * 1_000 + "b"
    for number in range(4):
        await inbox.ingest(delivery(f"SM{number}", hostile))
    await inbox.ingest(delivery("SM8", f"{hostile} code 1111"))
    assert await waiting.until(2) == [("slow", "pattern_too_slow"), ("next", "1111")]


# --- crashes and failures ---


async def test_after_a_crash_nothing_is_lost(store: Store, clock: FakeClock) -> None:
    """A message that was stored and handed to nobody is there for whoever asks next, and what was
    claimed stays claimed."""
    records = SmsRecords(store, clock)
    dying = Inbox(records, clock, ttl_ms=TTL_MS, number=NUMBER)
    await dying.ingest(delivery("SM1", "code 1111"))
    await dying.ingest(delivery("SM2", "code 2222"))
    await dying.claim_message(S1, "SM2")
    async with serving_inbox(store, clock) as inbox:
        found = await inbox.wait_for_code(S2, timeout_ms=0)
        assert isinstance(found, Code)
        assert found.code == "1111"
        assert await inbox.claim_message(S2, "SM2") == "already_claimed"
        assert await inbox.ingest(delivery("SM1", "code 1111")) == "duplicate"


async def test_without_a_task_that_serves_a_wait_ends(store: Store, clock: FakeClock) -> None:
    """It does not hang for ever."""
    inbox = Inbox(SmsRecords(store, clock), clock, ttl_ms=TTL_MS)
    async with anyio.create_task_group() as tasks:
        waiting = Waiting(inbox, tasks)
        await waiting.queue(S1)
        await clock.wait_for_sleepers()
        await clock.advance(LOOK_LIMIT_MS)
        assert await waiting.until(1) == [(S1, "unavailable")]


class GatedStore(Store):
    """A store in memory that fails on demand, and whose claims wait for the test."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__(MemoryBackend())
        self.fails = False
        self.is_shared = shared
        self.gate: anyio.Event | None = None
        self.swapping = anyio.Event()

    @classmethod
    async def opened(cls, *, shared: bool = False) -> GatedStore:
        store = cls(shared=shared)
        await store.open()
        return store

    @property
    def shared(self) -> bool:
        return self.is_shared

    async def compare_and_swap(
        self, table: str, key: Key, expected: object | Absent, new: object | Absent
    ) -> bool:
        self._check()
        swapped = await super().compare_and_swap(table, key, expected, new)
        if self.gate is not None and isinstance(new, dict) and new.get("claimed_by"):
            self.swapping.set()
            await self.gate.wait()
        return swapped

    async def load(self, table: str, key: Key, default: object = None) -> object:
        self._check()
        return await super().load(table, key, default)

    async def load_all(self, table: str) -> Items:
        self._check()
        return await super().load_all(table)

    def _check(self) -> None:
        if self.fails:
            raise StoreUnavailable("the disk is gone")


@pytest.mark.behaviour("lemon_gateway.32")
async def test_a_claim_that_nobody_hears_of_is_taken_back(clock: FakeClock) -> None:
    """The caller goes away while its claim is written: the message serves the next in line."""
    gated = await GatedStore.opened()
    async with serving_inbox(gated, clock) as inbox, anyio.create_task_group() as tasks:
        waiting = Waiting(inbox, tasks)
        await waiting.start(S1)
        await waiting.start(S2)
        gated.gate = anyio.Event()
        await inbox.ingest(delivery("SM1", "code 1111"))
        await gated.swapping.wait()
        waiting.scopes[S1].cancel()
        await settle()
        gate, gated.gate = gated.gate, None
        gate.set()
        assert await waiting.until(1) == [(S2, "1111")]
        (kept,) = await inbox.list_messages(include_claimed=True)
        assert kept.claimed_by == S2


async def test_a_failing_store_loses_no_message(clock: FakeClock) -> None:
    """Who comes while it fails is told; who waited is served once it works again."""
    gated = await GatedStore.opened()
    async with serving_inbox(gated, clock) as inbox, anyio.create_task_group() as tasks:
        waiting = Waiting(inbox, tasks)
        await waiting.start(S1)
        await inbox.ingest(delivery("SM1", "code 1111"))
        gated.fails = True  # between the store and the waiter
        await settle()
        await waiting.queue(S2)
        await settle()
        assert waiting.outcomes == []
        await clock.advance(RETRY_MS)
        assert await waiting.until(1) == [(S2, "unavailable")]
        gated.fails = False
        await clock.advance(RETRY_MS)
        assert (await waiting.until(2))[1:] == [(S1, "1111")]


async def test_messages_of_other_nodes_are_found(clock: FakeClock) -> None:
    """With a store that is shared the inbox looks again every two seconds."""
    gated = await GatedStore.opened(shared=True)
    async with serving_inbox(gated, clock) as inbox, anyio.create_task_group() as tasks:
        waiting = Waiting(inbox, tasks)
        await waiting.start(S1)
        elsewhere = Inbox(SmsRecords(gated, clock), clock, ttl_ms=TTL_MS)
        await elsewhere.ingest(delivery("SM1", "code 1111"))
        await settle()
        assert waiting.outcomes == []
        await clock.advance(LOOK_AGAIN_MS)
        assert await waiting.until(1) == [(S1, "1111")]
