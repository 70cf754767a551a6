"""Work on the database's own thread (specification lemon_core 8.1: operation timeout 5 s)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest

from lemon_core.store import StoreBusy, StoreUnavailable
from lemon_core.store.db_thread import DbThread, Job

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


@pytest.fixture
async def thread() -> AsyncIterator[DbThread]:
    started = DbThread(connect, name="test", timeout_ms=5_000)
    started.start()
    yield started
    await started.stop()


@pytest.fixture
async def hurried() -> AsyncIterator[DbThread]:
    """One that gives up after a moment."""
    started = DbThread(connect, name="test", timeout_ms=50, grace_s=0.05)
    started.start()
    yield started
    await started.stop()


def one(db: sqlite3.Connection) -> object:
    """A query."""
    return db.execute("SELECT 1").fetchone()[0]


async def test_results_and_errors_reach_their_caller(thread: DbThread) -> None:
    assert await thread.run(one) == 1
    with pytest.raises(sqlite3.OperationalError):
        await thread.run(lambda db: db.execute("nonsense"))
    with pytest.raises(KeyError):
        await thread.run(lambda _db: dict[str, int]()["x"])
    assert await thread.run(one) == 1


async def test_what_waits_too_long_is_withdrawn_and_never_runs(hurried: DbThread) -> None:
    started, go, ran = threading.Event(), threading.Event(), list[str]()
    outcomes: list[object] = []

    def slow() -> None:
        started.set()
        go.wait()

    async def submit(name: str, work: Callable[[], object]) -> None:
        def job(_db: sqlite3.Connection) -> None:
            work()
            ran.append(name)

        try:
            await hurried.run(job)
        except (StoreBusy, StoreUnavailable) as exc:
            outcomes.append((name, type(exc), getattr(exc, "outcome_unknown", None)))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit, "slow", slow)
            await anyio.to_thread.run_sync(started.wait)
            tasks.start_soon(submit, "waiting", lambda: None)
    assert sorted(outcomes, key=str) == [
        ("slow", StoreUnavailable, True),
        ("waiting", StoreBusy, None),
    ]
    go.set()
    with anyio.fail_after(5):
        assert await hurried.run(one) == 1
    assert ran == ["slow"]


class Watched(DbThread):
    """Tells when a job's time limit has passed."""

    def __init__(self) -> None:
        super().__init__(connect, name="test", timeout_ms=50, grace_s=5)
        self.limit_passed = anyio.Event()

    async def _outcome(self, job: Job[T], loop: asyncio.AbstractEventLoop) -> T:
        job.future.add_done_callback(lambda _: self.limit_passed.set())
        return await super()._outcome(job, loop)


async def test_an_outcome_within_the_grace_is_told() -> None:
    """SQLite's own wait for a lock ends at the same limit, a moment later."""
    thread = Watched()
    thread.start()
    go = threading.Event()

    async def let_go() -> None:
        await thread.limit_passed.wait()
        go.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            assert await thread.run(lambda _db: go.wait()) is True
    await thread.stop()


async def test_cancellation_waits_for_the_outcome(thread: DbThread) -> None:
    go, done = threading.Event(), list[bool]()

    async def work() -> None:
        done.append(await thread.run(lambda _db: go.wait()))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            go.set()
    assert done == [True]


async def test_a_task_cancelled_by_itself_also_learns_the_outcome_first(thread: DbThread) -> None:
    """Servers cancel the tasks of handlers, which no cancel scope holds off."""
    started, go, done = threading.Event(), threading.Event(), list[object]()

    def slow(_db: sqlite3.Connection) -> str:
        started.set()
        go.wait()
        return "outcome"

    async def work() -> None:
        done.append(await thread.run(slow))
        done.append("same step")
        await anyio.lowlevel.checkpoint()
        done.append("never")

    # A task without a scope is the subject here.
    task = asyncio.get_running_loop().create_task(work())
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(started.wait)
        for _ in range(2):
            task.cancel()
            await anyio.lowlevel.checkpoint()
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert done == ["outcome", "same step"]


async def test_a_connection_that_cannot_be_made_is_tried_again() -> None:
    attempts = 0

    def fails_first() -> sqlite3.Connection:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise sqlite3.OperationalError("unable to open database file")
        return connect()

    thread = DbThread(fails_first, name="test", timeout_ms=1_000)
    thread.start()
    with pytest.raises(sqlite3.OperationalError):
        await thread.run(one)
    assert await thread.run(one) == 1
    await thread.stop()


async def test_a_stopped_thread_refuses(thread: DbThread) -> None:
    await thread.stop()
    await thread.stop()
    with pytest.raises(StoreUnavailable, match="not open"):
        await thread.run(one)
