"""The scheduler's tasks: workers that break, and requests that never get lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest

from lemon_core.clock import Clock
from lemon_core.events import ErrorValue
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.scheduler import Scheduler, WorkerFactory, running_scheduler
from lemon_gateway.slots import Grant, WorkerToken
from lemon_gateway.tests.fakes import request, settle
from lemon_gateway.thread_worker import QueuedRequest, RunStarter, SlotSource, ThreadWorker


class Starter:
    """Runs that last until the test ends them, and may break."""

    def __init__(self) -> None:
        self.running: dict[str, anyio.Event] = {}
        self.ended: list[tuple[str, object]] = []
        self.broken: set[str] = set()

    def start(self, request: ExecutionRequest, slot_id: int) -> Lasting:
        return Lasting(self, request.run_id)

    async def end_unstarted(self, request: ExecutionRequest, error: ErrorValue) -> None:
        self.ended.append((request.run_id, error))


class Lasting:
    def __init__(self, starter: Starter, run_id: str) -> None:
        self._starter, self._run_id = starter, run_id

    async def execute(self) -> None:
        over = self._starter.running[self._run_id] = anyio.Event()
        try:
            await over.wait()
            if self._run_id in self._starter.broken:
                raise RuntimeError("a run may not raise, but this one does")
        finally:
            del self._starter.running[self._run_id]


class MortalWorker(ThreadWorker):
    """A worker that a test can kill wherever it waits."""

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            self.killed = anyio.Event()
            tasks.start_soon(self._die)
            await super().serve()
            tasks.cancel_scope.cancel()

    async def _die(self) -> None:
        await self.killed.wait()
        raise RuntimeError("killed")


@asynccontextmanager
async def scheduling(
    make_worker: WorkerFactory = ThreadWorker, *, max_slots: int = 1
) -> AsyncIterator[tuple[Scheduler, Starter, FakeClock]]:
    starter, clock = Starter(), FakeClock()
    scheduler = Scheduler(starter, clock, Telemetry(), max_slots=max_slots, make_worker=make_worker)
    with anyio.fail_after(5):
        async with running_scheduler(scheduler):
            yield scheduler, starter, clock


def of(run_id: str, agent: str) -> ExecutionRequest:
    return request(run_id, session_key=f"agent:{agent}:main")


@pytest.mark.behaviour("lemon_gateway.6")
async def test_the_death_of_a_waiting_worker_frees_its_place_and_keeps_its_request() -> None:
    """Specification lemon_gateway 3.2: worker death removes its queue entries and grants on."""
    made: list[MortalWorker] = []

    def make(
        token: WorkerToken, slots: SlotSource, starter: RunStarter, clock: Clock
    ) -> ThreadWorker:
        made.append(MortalWorker(token, slots, starter, clock))
        return made[-1]

    async with scheduling(make) as (scheduler, starter, _):
        for run_id, agent in (("run_1", "a"), ("run_2", "b"), ("run_3", "c")):
            await scheduler.submit(of(run_id, agent))
            await settle()
        assert list(starter.running) == ["run_1"]
        made[1].killed.set()
        await settle()
        # Its successor is behind the one that has waited on.
        assert made[3].token.generation == 1
        assert made[3].token != made[1].token
        starter.running["run_1"].set()
        await settle()
        assert list(starter.running) == ["run_3"]
        starter.running["run_3"].set()
        await settle()
        assert list(starter.running) == ["run_2"]
        assert starter.ended == []


@pytest.mark.behaviour("lemon_gateway.6")
async def test_the_death_of_a_holding_worker_frees_its_slot_and_its_queue_lives_on() -> None:
    """Specification lemon_gateway 3.2: the next waiter is granted, nothing queued is lost."""
    async with scheduling() as (scheduler, starter, _):
        await scheduler.submit(of("run_1", "a"))
        await scheduler.submit(of("run_2", "a"))
        await scheduler.submit(of("run_3", "b"))
        await settle()
        starter.broken.add("run_1")
        starter.running["run_1"].set()
        await settle()
        assert list(starter.running) == ["run_3"]
        assert scheduler.counts().in_flight == 1
        starter.running["run_3"].set()
        await settle()
        assert list(starter.running) == ["run_2"]


async def test_a_request_that_kills_every_worker_ends_after_three() -> None:
    """Specification lemon_gateway 3.3: the budget survives the worker."""

    class Fatal(ThreadWorker):
        async def serve(self) -> None:
            raise RuntimeError("dies at once")

    async with scheduling(Fatal) as (scheduler, starter, _):
        await scheduler.submit(of("run_1", "a"))
        await settle()
        ((run_id, error),) = starter.ended
        assert run_id == "run_1"
        assert isinstance(error, dict)
        assert (error["code"], error["detail"]) == (
            "run_start_failed",
            {"attempts": 3, "reason": "its worker died"},
        )
        assert scheduler.worker_count() == 0


async def test_a_worker_that_cannot_be_made_is_tried_twice_then_the_request_ends() -> None:
    """Specification lemon_gateway 3.2: one retry, then worker_unavailable."""
    attempts = 0

    def refuse(
        token: WorkerToken, slots: SlotSource, starter: RunStarter, clock: Clock
    ) -> ThreadWorker:
        nonlocal attempts
        attempts += 1
        raise OSError("no room")

    async with scheduling(refuse) as (scheduler, starter, _):
        await scheduler.submit(of("run_1", "a"))
        assert attempts == 2
        assert starter.ended == [("run_1", "worker_unavailable")]
        assert scheduler.worker_count() == 0


async def test_a_closing_worker_is_replaced_by_the_next_generation() -> None:
    """Specification lemon_gateway 3.2: the scheduler starts the next generation."""
    made: list[ThreadWorker] = []

    def make(
        token: WorkerToken, slots: SlotSource, starter: RunStarter, clock: Clock
    ) -> ThreadWorker:
        made.append(ThreadWorker(token, slots, starter, clock))
        return made[-1]

    async with scheduling(make) as (scheduler, starter, _):
        await scheduler.submit(of("run_1", "a"))
        await settle()
        # Closed while its task has not ended yet.
        assert made[0].drain() == []
        assert not made[0].enqueue(QueuedRequest(of("run_x", "a")))
        await scheduler.submit(of("run_2", "a"))
        assert [worker.token.generation for worker in made] == [1, 2]
        starter.running["run_1"].set()
        await settle()
        assert list(starter.running) == ["run_2"]


async def test_an_overdue_grant_is_asked_for_again_and_keeps_its_place() -> None:
    """Specification lemon_gateway 3.2: re-sent after 30 s, checked every 5 s."""
    async with scheduling() as (scheduler, starter, clock), anyio.create_task_group() as tasks:
        tasks.start_soon(scheduler.keep_house)
        for run_id, agent in (("run_1", "a"), ("run_2", "b"), ("run_3", "c")):
            await scheduler.submit(of(run_id, agent))
            await settle()
        await clock.advance(120_000)
        counts = scheduler.counts()
        assert (counts.in_flight, counts.waitq) == (1, 2)
        starter.running["run_1"].set()
        await settle()
        assert list(starter.running) == ["run_2"]
        tasks.cancel_scope.cancel()


@pytest.mark.behaviour("lemon_gateway.5")
async def test_a_grant_that_its_worker_does_not_want_goes_to_the_next() -> None:
    """Specification lemon_gateway 3.2: any other grant is handed straight back."""

    class Choosy(ThreadWorker):
        """The worker of `b` takes no grant that it is offered later."""

        def offer(self, grant: Grant) -> bool:
            wants = self.token.key != ("session", "agent:b:main") or grant.waited_ms == 0
            return wants and super().offer(grant)

    async with scheduling(Choosy) as (scheduler, starter, clock):
        for run_id, agent in (("run_1", "a"), ("run_2", "b"), ("run_3", "c")):
            await scheduler.submit(of(run_id, agent))
            await settle()
        await clock.advance(1)
        starter.running["run_1"].set()
        await settle()
        assert list(starter.running) == ["run_3"]
        assert scheduler.counts().in_flight == 1


async def test_telemetry_tells_load_and_waiting_time() -> None:
    """Specification lemon_gateway 4."""
    starter, clock, telemetry = Starter(), FakeClock(), Telemetry()
    told: list[tuple[str, object, object]] = []
    telemetry.attach("", lambda name, numbers, meta: told.append((name, numbers, meta)))
    scheduler = Scheduler(starter, clock, telemetry, max_slots=1)
    with anyio.fail_after(5):
        async with running_scheduler(scheduler):
            await scheduler.submit(of("run_1", "a"))
            await settle()
            await scheduler.submit(of("run_2", "b"))
            await settle()
            await clock.advance(250)
            starter.running["run_1"].set()
            await settle()
    names = [name.removeprefix("lemon.gateway.scheduler.") for name, _, _ in told]
    assert names[:4] == ["slot_granted", "slot_queued", "slot_released", "slot_granted"]
    assert told[3][1] == {"in_flight": 1, "max": 1, "waitq": 0, "count": 1, "wait_ms": 250}
    assert told[3][2] == {"run_id": "run_2", "key_kind": "session"}


class Notes:
    """What the scheduler recorded."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object], str | None]] = []
        self.about: set[tuple[str | None, str | None]] = set()

    def record(
        self,
        event_type: str,
        payload: Mapping[str, object],
        *,
        run_id: str | None = None,
        session_key: str | None = None,
        engine: str | None = None,
    ) -> None:
        self.lines.append((event_type, dict(payload), run_id))
        self.about.add((session_key, engine))


async def test_introspection_tells_the_life_of_a_worker_and_of_its_slots() -> None:
    """Specification lemon_gateway 4."""
    starter, clock, notes = Starter(), FakeClock(), Notes()
    scheduler = Scheduler(starter, clock, Telemetry(), max_slots=2, introspection=notes)
    with anyio.fail_after(5):
        async with running_scheduler(scheduler):
            await scheduler.submit(of("run_1", "a"))
            await settle()
            await scheduler.submit(of("run_2", "a"))
            await settle()
            starter.running["run_1"].set()
            await settle()
            starter.running["run_2"].set()
            await settle()
    assert notes.lines == [
        ("thread_started", {}, "run_1"),
        ("thread_message_dispatched", {"queue_len": 1}, "run_1"),
        ("scheduled_job_triggered", {}, "run_1"),
        ("thread_message_dispatched", {"queue_len": 1}, "run_2"),
        ("scheduled_job_completed", {"in_flight": 0, "max": 2}, "run_2"),
        ("scheduled_job_triggered", {}, "run_2"),
        ("scheduled_job_completed", {"in_flight": 0, "max": 2}, None),
        ("thread_terminated", {"queue_len": 0}, None),
    ]
    assert notes.about == {("agent:a:main", "lemon")}
