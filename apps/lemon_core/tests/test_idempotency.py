"""Remembered results, leases and the quick memory (specification lemon_core 9)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.idempotency import (
    IDEMPOTENCY,
    NEXT,
    RESULT_TTL_MS,
    RETENTION_MS,
    Ambiguous,
    Completed,
    Idempotency,
    LeaseLost,
    OutcomeUnknown,
    Pending,
    ReservationState,
    Reserved,
    Submitted,
    TtlDedupe,
)
from lemon_core.store import (
    ChatStateStore,
    RunStore,
    Store,
    StoreCorrupt,
    StoreError,
    StoreSettings,
    StoreUnavailable,
    open_store,
)
from lemon_core.store.sweeps import SWEEP_INTERVAL_MS, serve_sweeps
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

LEASE_MS = 60_000
STATES: tuple[ReservationState, ...] = ("pending", "submitted", "completed", "outcome_unknown")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(backend_settings: StoreSettings, clock: FakeClock) -> AsyncIterator[Store]:
    async with open_store(backend_settings, clock) as opened:
        yield opened


@pytest.fixture
def once(store: Store, clock: FakeClock) -> Idempotency:
    return Idempotency(store, clock)


async def reserved(once: Idempotency, run_id: str = "run_1") -> Reserved:
    taken = await once.reserve("hook", "k", run_id, LEASE_MS, {"mode": "async"})
    assert isinstance(taken, Reserved)
    return taken


async def test_a_result_answers_for_24_hours(once: Idempotency, clock: FakeClock) -> None:
    await once.put("s", "k", {"n": 1})
    await clock.advance(RESULT_TTL_MS)
    assert await once.get("s", "k") == {"n": 1}
    assert await once.put_new("s", "k", 2) is False
    await clock.advance(1)
    assert await once.get("s", "k", "absent") == "absent"
    assert await once.put_new("s", "k", 2) is True
    assert await once.get("s", "k") == 2
    await once.delete("s", "k")
    await once.delete("s", "k")
    assert await once.get("s", "k") is None


async def test_the_record_has_the_form_of_the_specification(
    once: Idempotency, store: Store, clock: FakeClock
) -> None:
    await once.put("s", "k", None)
    record = {"result": None, "inserted_at_ms": clock.now_ms()}
    assert await store.list(IDEMPOTENCY) == [("s:k", record)]


async def test_one_of_many_put_new_wins(once: Idempotency) -> None:
    won: list[int] = []

    async def put(number: int) -> None:
        if await once.put_new("s", "k", number):
            won.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(put, number)
    assert won == [await once.get("s", "k")]


@pytest.mark.behaviour("lemon_core.27")
async def test_execute_runs_once_under_concurrency(once: Idempotency) -> None:
    ran: list[int] = []
    answers: list[object] = []
    entered, go = anyio.Event(), anyio.Event()

    async def fn() -> object:
        ran.append(1)
        entered.set()
        await go.wait()
        return None  # a null result is a result

    async def call() -> None:
        answers.append(await once.execute("s", "k", fn))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(call)
            await entered.wait()
            go.set()
        assert await once.execute("s", "k", fn) is None
    assert (len(ran), answers) == (1, [None] * 20)


@pytest.mark.behaviour("lemon_core.27")
@settings(max_examples=40, deadline=None)
@given(calls=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_any_mix_of_concurrent_calls_runs_each_key_once(calls: list[tuple[int, bool]]) -> None:
    """One success per key at most, whoever fails before it; afterwards everybody has its result."""
    succeeded: list[int] = []
    answers: list[tuple[int, object]] = []

    async def main() -> None:
        clock = FakeClock()
        async with open_store(StoreSettings(), clock) as store:
            once = Idempotency(store, clock)

            async def call(key: int, fails: bool) -> None:
                async def fn() -> object:
                    await anyio.lowlevel.checkpoint()
                    if fails:
                        raise ValueError
                    succeeded.append(key)
                    return f"{key}: {len(succeeded)}"

                try:
                    answers.append((key, await once.execute("s", str(key), fn)))
                except ValueError:
                    assert fails

            async with anyio.create_task_group() as tasks:
                for key, fails in calls:
                    tasks.start_soon(call, key, fails)
            for key, answer in answers:
                assert await once.get("s", str(key)) == answer

    anyio.run(main)
    assert len(succeeded) == len(set(succeeded))


async def test_a_failing_call_stores_nothing(once: Idempotency, store: Store) -> None:
    async def fail() -> object:
        raise ValueError("no")

    async def work() -> object:
        return "done"

    with pytest.raises(ValueError, match="no"):
        await once.execute("s", "k", fail)
    assert await store.list(IDEMPOTENCY) == []
    assert await once.execute("s", "k", work) == "done"


async def test_a_reservation_tells_how_far_the_work_is(once: Idempotency) -> None:
    """Specification lemon_gateway 6.3: the rows of its table are these answers."""
    taken = await reserved(once)
    assert (taken.run_id, taken.receipt) == ("run_1", {"mode": "async"})
    again = await once.reserve("hook", "k", "run_2", LEASE_MS)
    assert again == Pending("run_1", {"mode": "async"})
    await once.advance(taken, "submitted")
    again = await once.reserve("hook", "k", "run_2", LEASE_MS)
    assert again == Submitted("run_1", {"mode": "async"})
    await once.advance(taken, "completed", {"response_status": 200})
    again = await once.reserve("hook", "k", "run_2", LEASE_MS)
    assert again == Completed("run_1", {"response_status": 200})


async def test_what_is_let_go_is_taken_over_at_once(once: Idempotency) -> None:
    first = await reserved(once)
    await once.let_go(first)
    second = await reserved(once, "run_2")
    assert (second.run_id, second.receipt) == (first.run_id, first.receipt)
    with pytest.raises(LeaseLost):
        await once.let_go(first)


async def test_a_look_takes_nothing(once: Idempotency, clock: FakeClock) -> None:
    assert await once.look("webhook:x", "key") is None
    first = await once.reserve("webhook:x", "key", "run_1", LEASE_MS, {"n": 1})
    assert isinstance(first, Reserved)
    await clock.advance(LEASE_MS)
    for _ in range(2):
        assert await once.look("webhook:x", "key") == Pending("run_1", {"n": 1})
    await once.advance(first, "submitted")
    assert await once.look("webhook:x", "key") == Submitted("run_1", {"n": 1})


async def test_an_unknown_outcome_is_replayed(once: Idempotency, clock: FakeClock) -> None:
    await once.advance(await reserved(once), "outcome_unknown", {"response_status": 200})
    await clock.advance(2 * LEASE_MS)
    again = await once.reserve("hook", "k", "run_2", LEASE_MS)
    assert again == OutcomeUnknown("run_1", {"response_status": 200})


@pytest.mark.behaviour("lemon_core.27")
async def test_an_expired_lease_is_taken_over_with_the_same_run_id(
    once: Idempotency, clock: FakeClock
) -> None:
    first = await reserved(once)
    await clock.advance(LEASE_MS - 1)
    assert isinstance(await once.reserve("hook", "k", "run_2", LEASE_MS), Pending)
    await clock.advance(1)
    second = await reserved(once, "run_2")
    assert (second.run_id, second.receipt) == ("run_1", {"mode": "async"})
    assert second.token != first.token


@pytest.mark.behaviour("lemon_core.27")
async def test_a_lost_lease_cannot_write(once: Idempotency, store: Store, clock: FakeClock) -> None:
    first = await reserved(once)
    await clock.advance(LEASE_MS)
    second = await reserved(once)
    before = await store.list(IDEMPOTENCY)
    for state in STATES[1:]:
        with pytest.raises(LeaseLost, match="hook:k"):
            await once.advance(first, state, {"response_status": 500})
    with pytest.raises(LeaseLost):
        await once.release(first)
    assert await store.list(IDEMPOTENCY) == before
    await once.advance(second, "completed")


async def test_an_expired_lease_that_nobody_took_still_writes(
    once: Idempotency, clock: FakeClock
) -> None:
    taken = await reserved(once)
    await clock.advance(10 * LEASE_MS)
    await once.advance(taken, "completed")
    assert isinstance(await once.reserve("hook", "k", "run_2", LEASE_MS), Completed)


@pytest.mark.behaviour("lemon_core.27")
@pytest.mark.parametrize("run_id", [{}, {"run_id": None}, {"run_id": ""}], ids=repr)
async def test_a_record_without_run_id_stays_ambiguous(
    once: Idempotency, store: Store, clock: FakeClock, run_id: dict[str, object]
) -> None:
    record = {"state": "pending", "updated_at_ms": 0, **run_id}
    await store.put(IDEMPOTENCY, "hook:k", record)
    for _ in range(2):
        await clock.advance(RETENTION_MS + 1)
        await once.sweep()
        assert await once.reserve("hook", "k", "run_2", LEASE_MS) == Ambiguous()
    assert await store.list(IDEMPOTENCY) == [("hook:k", record)]


@pytest.mark.behaviour("lemon_core.27")
async def test_one_of_many_takes_over(once: Idempotency, clock: FakeClock) -> None:
    await reserved(once)
    await clock.advance(LEASE_MS)
    answers: list[object] = []

    async def take() -> None:
        answers.append(await once.reserve("hook", "k", "run_2", LEASE_MS))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(take)
    assert [type(answer) for answer in answers].count(Reserved) == 1
    assert [type(answer) for answer in answers].count(Pending) == 9


@pytest.mark.behaviour("lemon_core.27")
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "wait", "release", "submitted", "completed"]),
            st.integers(0, 4),
        ),
        max_size=30,
    )
)
def test_no_two_owners_ever_write(steps: list[tuple[str, int]]) -> None:
    """Only the lease that was given last writes, and the run id never changes while it may run."""

    async def main() -> None:
        clock = FakeClock()
        async with open_store(StoreSettings(), clock) as store:
            once, leases = Idempotency(store, clock), list[Reserved]()
            for number, (step, which) in enumerate(steps):
                before = await store.get(IDEMPOTENCY, "hook:k")
                if step == "wait":
                    await clock.advance(which * LEASE_MS // 3)
                elif step == "reserve":
                    answer = await once.reserve("hook", "k", f"run_{number}", LEASE_MS)
                    if isinstance(answer, Reserved):
                        if isinstance(before, dict):
                            assert answer.run_id == before["run_id"]
                        leases.append(answer)
                elif leases:
                    await write(once, store, step, leases[which % len(leases)], leases[-1])

    async def write(
        once: Idempotency, store: Store, step: str, lease: Reserved, newest: Reserved
    ) -> None:
        before = await store.get(IDEMPOTENCY, "hook:k")
        try:
            if step == "release":
                await once.release(lease)
            else:
                await once.advance(lease, "submitted" if step == "submitted" else "completed")
        except (LeaseLost, ValueError):
            assert await store.get(IDEMPOTENCY, "hook:k") == before
        else:
            assert lease is newest

    anyio.run(main)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("to", STATES)
async def test_only_the_steps_of_the_table_are_taken(
    once: Idempotency, state: ReservationState, to: ReservationState
) -> None:
    taken = await reserved(once)
    if state != "pending":
        await once.advance(taken, state)
    if to in NEXT[state] or to == state:
        await once.advance(taken, to)
    else:
        with pytest.raises(ValueError, match=f"a {state} reservation does not become {to}"):
            await once.advance(taken, to)


async def test_a_rejected_reservation_may_be_tried_again(once: Idempotency) -> None:
    taken = await reserved(once)
    await once.release(taken)
    with pytest.raises(LeaseLost):
        await once.release(taken)
    with pytest.raises(LeaseLost):
        await once.advance(taken, "submitted")
    again = await reserved(once, "run_2")
    assert again.run_id == "run_2"
    await once.advance(again, "submitted")
    with pytest.raises(ValueError, match="submitted reservation is not released"):
        await once.release(again)


@pytest.mark.parametrize(("run_id", "lease_ms"), [("", 1), ("run_1", 0)])
async def test_a_reservation_needs_a_run_id_and_time(
    once: Idempotency, run_id: str, lease_ms: int
) -> None:
    with pytest.raises(ValueError, match="at least 1 ms"):
        await once.reserve("hook", "k", run_id, lease_ms)


async def test_a_failing_store_never_reads_as_absent(
    clock: FakeClock,
) -> None:
    ran: list[int] = []

    async def fn() -> object:
        ran.append(1)
        return None

    async with open_store(StoreSettings(), clock) as store:
        once = Idempotency(store, clock)
        taken = await reserved(once)
    for call in (
        once.get("s", "k"),
        once.put_new("s", "k", 1),
        once.execute("s", "k", fn),
        once.reserve("hook", "k", "run_2", LEASE_MS),
        once.advance(taken, "completed"),
        once.release(taken),
    ):
        with pytest.raises(StoreUnavailable):
            await call
    assert ran == []


@pytest.mark.parametrize("value", ["text", {"state": "odd"}, {"state": "pending", "run_id": 1}])
async def test_a_damaged_record_is_corrupt(once: Idempotency, store: Store, value: object) -> None:
    await store.put(IDEMPOTENCY, "s:k", value)
    with pytest.raises(StoreCorrupt):
        await once.get("s", "k")
    with pytest.raises(StoreError):
        await once.reserve("s", "k", "run_1", LEASE_MS)


@pytest.mark.behaviour("lemon_core.25")
async def test_the_sweeps_let_old_records_go_and_keep_what_must_stay(clock: FakeClock) -> None:
    async with open_store(StoreSettings(), clock) as store:
        once = Idempotency(store, clock)
        unknown = await once.reserve("hook", "unknown", "run_1", LEASE_MS)
        assert isinstance(unknown, Reserved)
        await once.advance(unknown, "outcome_unknown")
        for key, lease_ms in (("pending", LEASE_MS), ("living", 10 * RETENTION_MS)):
            await once.reserve("hook", key, "run_2", lease_ms)
        done = await once.reserve("hook", "done", "run_3", LEASE_MS)
        assert isinstance(done, Reserved)
        await once.advance(done, "completed")
        await once.put("s", "result", 1)
        await store.put(IDEMPOTENCY, "hook:legacy", {"state": "pending"})
        await store.put(IDEMPOTENCY, "odd", "not a record")
        await clock.advance(RETENTION_MS - SWEEP_INTERVAL_MS)
        sweeps = {IDEMPOTENCY: once.sweep}
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                runs, chat = RunStore(store, clock), ChatStateStore(store, clock)
                tasks.start_soon(serve_sweeps, runs, chat, clock, sweeps)
                await clock.wait_for_sleepers()
                await clock.advance(SWEEP_INTERVAL_MS)
                assert len(await store.list(IDEMPOTENCY)) == 7
                await clock.advance(SWEEP_INTERVAL_MS)
                tasks.cancel_scope.cancel()
        kept = [key for key, _ in await store.list(IDEMPOTENCY)]
        assert kept == ["hook:legacy", "hook:living", "hook:unknown", "odd"]


async def test_a_key_is_seen_until_its_time_has_passed(clock: FakeClock) -> None:
    seen = TtlDedupe(1_000, 10, clock)
    assert seen.check_and_mark("a") == "new"
    clock.set_wall(0)
    await clock.advance(1_000)
    assert seen.check_and_mark("a") == "seen"
    await clock.advance(1)
    assert seen.check_and_mark("a") == "new"


async def test_the_memory_is_bounded_and_forgets_the_oldest(clock: FakeClock) -> None:
    seen = TtlDedupe(1_000, 2, clock)
    for key in ("a", "b", "c"):
        seen.check_and_mark(key)
    assert len(seen) == 2
    assert seen.check_and_mark("c") == "seen"
    assert seen.check_and_mark("a") == "new"
    await clock.advance(1_001)
    seen.check_and_mark("d")
    assert len(seen) == 1
