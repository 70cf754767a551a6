"""The lock: order, timeouts, owner death, and that age takes nothing away."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lemon_core.resume import ResumeToken
from lemon_core.testing import FakeClock
from lemon_gateway.engine_lock import EngineLock, LockKey, LockLease, LockTable, Waiter, lock_key
from lemon_gateway.errors import LockTimeout
from lemon_gateway.tests.fakes import request, settle

KEY: LockKey = ("session", "agent:default:main")
OTHER: LockKey = ("resume", "sess_1")


@pytest.mark.behaviour("lemon_gateway.9")
def test_the_key_is_the_native_resume_value_else_the_session() -> None:
    """Specification lemon_gateway 3.4."""
    native = ResumeToken(engine="lemon", value="sess_1")
    foreign = ResumeToken(engine="other", value="sess_1")
    assert lock_key(request("run_1", resume=native)) == ("resume", "sess_1")
    assert lock_key(request("run_1", resume=foreign)) == ("session", "agent:default:main")
    assert lock_key(request("run_1")) == ("session", "agent:default:main")


@pytest.mark.behaviour("lemon_gateway.8")
async def test_waiters_are_served_in_order() -> None:
    """Specification lemon_gateway 3.4: FIFO among waiters; keys are independent."""
    lock = EngineLock(FakeClock())
    order: list[str] = []

    async def wait(run_id: str) -> None:
        async with lock.hold(KEY, run_id):
            order.append(run_id)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            first = await lock.acquire(KEY, "run_0")
            async with lock.hold(OTHER, "run_x"):
                for number in (1, 2, 3):
                    tasks.start_soon(wait, f"run_{number}")
                    await settle()
                assert lock.counts() == (2, 3)
                lock.release(first)
    assert order == ["run_1", "run_2", "run_3"]
    assert lock.counts() == (0, 0)


async def test_a_waiter_that_times_out_leaves_the_line() -> None:
    """Specification lemon_gateway 3.4: a waiter that times out gets LockTimeout."""
    clock = FakeClock()
    lock = EngineLock(clock)
    with anyio.fail_after(5):
        async with lock.hold(KEY, "run_0"), anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(LockTimeout) as caught:
                    await lock.acquire(KEY, "run_1", 500)
                assert (caught.value.key, caught.value.waited_ms) == (KEY, 500)

            tasks.start_soon(wait)
            await clock.wait_for_sleepers()
            await clock.advance(500)
        assert lock.counts() == (0, 0)


async def test_timeout_zero_fails_at_once_and_only_if_held() -> None:
    """Specification lemon_gateway 3.4: timeout 0 fails at once if held."""
    lock = EngineLock(FakeClock())
    with anyio.fail_after(5):
        lease = await lock.acquire(KEY, "run_0", 0)
        with pytest.raises(LockTimeout):
            await lock.acquire(KEY, "run_1", 0)
        lock.release(lease)
        lock.release(await lock.acquire(KEY, "run_1", 0))


async def test_a_late_timer_does_not_take_the_lease_of_a_served_waiter() -> None:
    """Specification lemon_gateway 3.4: a late timer for a served waiter is ignored."""
    clock = FakeClock()
    lock = EngineLock(clock)
    with anyio.fail_after(5):
        lease = await lock.acquire(KEY, "run_0")
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                async with lock.hold(KEY, "run_1", 500):
                    await clock.advance(10_000)
                    holder = lock.holder(KEY)
                    assert holder is not None
                    assert holder.run_id == "run_1"

            tasks.start_soon(wait)
            await clock.wait_for_sleepers()
            lock.release(lease)


async def test_a_cancelled_waiter_leaves_the_line_even_when_it_was_just_served() -> None:
    """Specification lemon_gateway 3.4: a waiter that is cancelled leaves the queue."""
    lock = EngineLock(FakeClock())
    with anyio.fail_after(5):
        lease = await lock.acquire(KEY, "run_0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lock.acquire, KEY, "run_1")
            await settle()
            lock.release(lease)  # serves run_1, which does not run before it is cancelled
            tasks.cancel_scope.cancel()
        assert lock.holder(KEY) is None
        assert lock.counts() == (0, 0)


@pytest.mark.behaviour("lemon_gateway.8")
async def test_foreign_and_double_release_change_nothing() -> None:
    """Specification lemon_gateway 3.4: release is idempotent, foreign leases are ignored."""
    lock = EngineLock(FakeClock())
    with anyio.fail_after(5):
        stale = await lock.acquire(KEY, "run_1")
        lock.release(stale)
        current = await lock.acquire(KEY, "run_2")
        lock.release(stale)
        lock.release(LockLease(KEY, "run_2", 999, 0))
        lock.release(LockLease(OTHER, "run_2", current.id, 0))
        assert lock.holder(KEY) == current


@pytest.mark.behaviour("lemon_gateway.8")
async def test_the_death_of_the_owning_task_passes_the_lock_on() -> None:
    """Specification lemon_gateway 3.4: confirmed death of the owner passes the lock on."""
    lock = EngineLock(FakeClock())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lock.acquire, KEY, "run_dead")  # ends without giving back
            await settle()
            lease = await lock.acquire(KEY, "run_next")
            assert lock.holder(KEY) == lease


@pytest.mark.behaviour("lemon_gateway.8")
async def test_an_over_age_owner_keeps_the_lock_and_is_reported_each_sweep() -> None:
    """Specification lemon_gateway 3.4: age never passes the lock on; telemetry once per sweep."""
    clock = FakeClock()
    reports: list[tuple[str, int, int]] = []
    lock = EngineLock(
        clock,
        max_hold_ms=300_000,
        on_over_age=lambda lease, age, waiters: reports.append((lease.run_id, age, waiters)),
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lock.serve)
            lease = await lock.acquire(KEY, "run_old")
            tasks.start_soon(lock.acquire, KEY, "run_next", 10**9)
            await settle()
            await clock.advance(300_000)
            assert reports == []
            await clock.advance(60_000)
            assert reports == [("run_old", 330_000, 1), ("run_old", 360_000, 1)]
            assert lock.holder(KEY) == lease
            assert lock.counts() == (1, 1)
            tasks.cancel_scope.cancel()


class LockMachine(RuleBasedStateMachine):
    """One holder per key, line order, and nothing but a release passes a lock on."""

    keys = st.sampled_from([KEY, OTHER])

    def __init__(self) -> None:
        super().__init__()
        self.table = LockTable()
        self.leases: list[LockLease] = []
        self.holders: dict[LockKey, LockLease] = {}
        self.lines: dict[LockKey, list[Waiter]] = {KEY: [], OTHER: []}
        self.numbers = iter(range(1, 10**6))

    @rule(key=keys)
    def take(self, key: LockKey) -> None:
        got = self.table.take(key, f"run_{next(self.numbers)}", 0)
        if isinstance(got, Waiter):
            assert key in self.holders
            self.lines[key].append(got)
        else:
            assert key not in self.holders
            self.holders[key] = got
            self.leases.append(got)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.leases:
            return
        lease = data.draw(st.sampled_from(self.leases))
        served = self.table.release(lease, 0)
        if self.holders.get(lease.key) != lease:
            assert served is None
            return
        del self.holders[lease.key]
        if self.lines[lease.key]:
            assert served is self.lines[lease.key].pop(0)
            assert served.lease is not None
            self.holders[lease.key] = served.lease
            self.leases.append(served.lease)
        else:
            assert served is None

    @rule(key=keys, data=st.data())
    def withdraw(self, key: LockKey, data: st.DataObject) -> None:
        if self.lines[key]:
            waiter = data.draw(st.sampled_from(self.lines[key]))
            self.table.withdraw(waiter)
            self.lines[key].remove(waiter)

    @invariant()
    def holders_are_as_expected(self) -> None:
        assert {key: self.table.holder(key) for key in self.holders} == self.holders
        assert len(self.table.holders()) == len(self.holders)

    @invariant()
    def waiting_needs_a_holder(self) -> None:
        for key, line in self.lines.items():
            assert self.table.waiting(key) == len(line)
            assert key in self.holders or not line


TestLockMachine = LockMachine.TestCase
TestLockMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
