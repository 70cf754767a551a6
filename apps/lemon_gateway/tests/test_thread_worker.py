"""The queue and the start budget: as state, then a worker with a scripted scheduler around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lemon_core.runs import InvalidCommand
from lemon_core.testing import FakeClock
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.slots import Grant, Refusal, WorkerToken
from lemon_gateway.tests.fakes import request
from lemon_gateway.thread_worker import (
    MAX_START_ATTEMPTS,
    QueuedRequest,
    ThreadWorker,
    WorkerQueue,
)

TOKEN = WorkerToken(("session", "agent:default:main"), 1, 1)


def grant(request_token: int, slot_id: int = 1) -> Grant:
    return Grant(slot_id, request_token, TOKEN, 0)


@pytest.mark.behaviour("lemon_gateway.5")
def test_only_the_awaited_grant_is_accepted() -> None:
    """Specification lemon_gateway 3.2: a worker accepts only the token it is waiting for."""
    queue = WorkerQueue()
    queue.enqueue(QueuedRequest(request("run_1")))
    queue.expect(7, 0)
    assert not queue.accept(grant(6))
    assert queue.accept(grant(7))
    assert not queue.accept(grant(7)), "the same grant twice"


def test_a_grant_for_an_empty_or_a_busy_worker_goes_back() -> None:
    """Specification lemon_gateway 3.3: it is released at once."""
    queue = WorkerQueue()
    queue.expect(1, 0)
    assert not queue.accept(grant(1))
    queue.enqueue(QueuedRequest(request("run_1")))
    queue.enqueue(QueuedRequest(request("run_2")))
    queue.start()
    queue.expect(2, 0)
    assert not queue.accept(grant(2))


def test_a_closing_worker_refuses_requests() -> None:
    """Specification lemon_gateway 3.2: a worker that is closing refuses the enqueue."""
    queue = WorkerQueue()
    assert queue.close_if_idle()
    assert not queue.enqueue(QueuedRequest(request("run_1")))


def test_a_request_is_due_again_after_thirty_seconds() -> None:
    """Specification lemon_gateway 3.2: re-sent after 30 s without a grant."""
    queue = WorkerQueue()
    queue.enqueue(QueuedRequest(request("run_1")))
    queue.expect(1, 1_000)
    assert not queue.resend_due(30_999)
    assert queue.resend_due(31_000)


class QueueMachine(RuleBasedStateMachine):
    """One run at a time, in order, and nothing lost."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkerQueue()
        self.waiting: list[str] = []
        self.started: list[str] = []
        self.numbers = iter(range(1, 10**6))
        self.granted = False

    @rule()
    def enqueue(self) -> None:
        run_id = f"run_{next(self.numbers)}"
        if self.queue.enqueue(QueuedRequest(request(run_id))):
            self.waiting.append(run_id)

    @rule()
    def expect(self) -> None:
        self.queue.expect(next(self.numbers), 0)
        self.granted = False

    @rule(stale=st.booleans())
    def offer(self, stale: bool) -> None:
        token = 0 if stale else (self.queue.expecting or 0)
        taken = self.queue.accept(grant(token))
        assert not (stale and taken)
        assert not (taken and self.queue.running)
        self.granted = self.granted or taken

    @precondition(lambda self: self.granted and self.waiting and not self.queue.running)
    @rule()
    def start(self) -> None:
        self.granted = False
        assert self.queue.start().run_id == self.waiting.pop(0)
        assert self.queue.running is not None
        self.started.append(self.queue.running)

    @rule()
    def finish(self) -> None:
        self.queue.finish()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from([*self.waiting, "run_unknown"]))
        removed = self.queue.remove(run_id)
        assert (removed is not None) == (run_id in self.waiting)
        if removed is not None:
            self.waiting.remove(run_id)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert [item.request.run_id for item in self.queue.items] == self.waiting

    @invariant()
    def nothing_starts_twice(self) -> None:
        assert len(self.started) == len(set(self.started))


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class Partner:
    """Scheduler and starter of one worker: grants at once, and starts as the test says."""

    def __init__(self, start: Callable[[ExecutionRequest], None]) -> None:
        self._start = start
        self.worker: ThreadWorker | None = None
        self.granting = True
        self.slots: list[int] = []
        self.released: list[int] = []
        self.ran: list[str] = []
        self.ended: list[tuple[str, object]] = []
        self.asked: list[int] = []
        self.withdrawn = 0

    def request_slot(self, worker: WorkerToken, request_token: int) -> Grant | Refusal:
        self.asked.append(request_token)
        return self.grant(request_token) if self.granting else "queued"

    def grant(self, request_token: int) -> Grant:
        given = grant(request_token, len(self.slots) + 1)
        self.slots.append(given.slot_id)
        assert self.worker is not None
        if not self.worker.offer(given):
            self.release_slot(given.slot_id)
        return given

    def withdraw_slot_request(self, worker: WorkerToken) -> None:
        self.withdrawn += 1

    def release_slot(self, slot_id: int) -> None:
        self.released.append(slot_id)

    def start(self, request: ExecutionRequest, slot_id: int) -> Started:
        self._start(request)
        return Started(self, request.run_id)

    async def end_unstarted(self, request: ExecutionRequest, error: object) -> None:
        self.ended.append((request.run_id, error))


class Started:
    def __init__(self, partner: Partner, run_id: str) -> None:
        self._partner, self._run_id = partner, run_id

    async def execute(self) -> None:
        self._partner.ran.append(self._run_id)


@asynccontextmanager
async def serving(partner: Partner, clock: FakeClock, *run_ids: str):  # type: ignore[no-untyped-def]
    worker = ThreadWorker(TOKEN, partner, partner, clock)
    partner.worker = worker
    for run_id in run_ids:
        worker.enqueue(QueuedRequest(request(run_id)))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.serve)
            yield worker


async def test_requests_run_in_order_on_a_slot_each() -> None:
    """Specification lemon_gateway 3.3: FIFO, one run at a time, the next one asks anew."""
    partner = Partner(lambda _: None)
    async with serving(partner, FakeClock(), "run_1", "run_2"):
        pass
    assert partner.ran == ["run_1", "run_2"]
    assert partner.released == partner.slots == [1, 2]


async def test_a_start_that_works_the_third_time_runs_once() -> None:
    """Specification lemon_gateway 3.3: the budget belongs to the request and survives grants."""
    faults = iter([OSError("one"), OSError("two")])

    def start(_: ExecutionRequest) -> None:
        fault = next(faults, None)
        if fault is not None:
            raise fault

    partner, clock = Partner(start), FakeClock()
    async with serving(partner, clock, "run_1"):
        await clock.wait_for_sleepers()
        await clock.advance(99)
        assert partner.slots == [1], "100 ms before the second attempt"
        await clock.advance(1)
        await clock.wait_for_sleepers()
        await clock.advance(200)
    assert (partner.ran, partner.ended) == (["run_1"], [])
    assert partner.slots == partner.released == [1, 2, 3]


async def test_a_spent_budget_ends_the_request_once_and_the_next_one_runs() -> None:
    """Specification lemon_gateway 3.3: three starts over three grants, then one completion."""

    def start(wanted: ExecutionRequest) -> None:
        if wanted.run_id == "run_1":
            raise OSError("no process")

    partner, clock = Partner(start), FakeClock()
    async with serving(partner, clock, "run_1", "run_2"):
        for delay in (100, 200):
            await clock.wait_for_sleepers()
            await clock.advance(delay)
    assert partner.ended == [
        (
            "run_1",
            {
                "code": "run_start_failed",
                "message": "the run did not start in 3 attempts",
                "detail": {"attempts": MAX_START_ATTEMPTS, "reason": "OSError: no process"},
            },
        )
    ]
    assert partner.ran == ["run_2"]
    assert partner.slots == partner.released == [1, 2, 3, 4]


async def test_a_permanently_invalid_request_has_one_attempt() -> None:
    """Specification lemon_gateway 3.3: ended on the first attempt."""

    def start(_: ExecutionRequest) -> None:
        raise InvalidCommand("nonsense")

    partner = Partner(start)
    async with serving(partner, FakeClock(), "run_1"):
        pass
    assert [run_id for run_id, _ in partner.ended] == ["run_1"]
    assert partner.slots == partner.released == [1]


async def test_a_worker_whose_only_request_is_taken_out_leaves_the_line() -> None:
    """Specification lemon_gateway 3.3: with nothing queued it stops."""
    partner = Partner(lambda _: None)
    partner.granting = False
    async with serving(partner, FakeClock(), "run_1") as worker:
        await anyio.lowlevel.checkpoint()
        assert worker.remove("run_1") is not None
    assert (partner.withdrawn, partner.ran) == (1, [])


async def test_a_slot_that_comes_in_the_moment_of_removal_goes_back() -> None:
    """Specification lemon_gateway 3.3: a grant for an empty queue is released at once."""
    partner = Partner(lambda _: None)
    partner.granting = False
    async with serving(partner, FakeClock(), "run_1") as worker:
        await anyio.lowlevel.checkpoint()
        partner.grant(partner.asked[0])
        worker.remove("run_1")
    assert (partner.released, partner.ran) == ([1], [])


async def test_an_overdue_request_is_sent_again_with_its_token() -> None:
    """Specification lemon_gateway 3.2: a worker re-sends its request after 30 s."""
    partner, clock = Partner(lambda _: None), FakeClock()
    partner.granting = False
    async with serving(partner, clock, "run_1") as worker:
        await anyio.lowlevel.checkpoint()
        worker.resend_if_due()
        assert len(partner.asked) == 1
        await clock.advance(30_000)
        partner.granting = True
        worker.resend_if_due()
    assert partner.asked[0] == partner.asked[1]
    assert partner.ran == ["run_1"]
