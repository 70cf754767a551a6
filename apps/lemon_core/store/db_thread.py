"""A thread that owns one SQLite connection and runs work on it for the event loop.

The thread takes everything that waits at once, and wakes the loop once for all of it: under load
both sides pay for a group what a thread pool pays for each call.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

from lemon_core.store.errors import StoreBusy, StoreUnavailable
from lemon_core.store.settled import cancel_again

T = TypeVar("T")
Connect = Callable[[], sqlite3.Connection]

MAX_GROUP = 256
# How long a job that is under way at the time limit may still tell its outcome: SQLite's own wait
# for a lock ends at the same limit, and its answer ("nothing was written") is worth a moment.
GRACE_S = 1.0
JOIN_TIMEOUT_S = 5.0


class Job(Generic[T]):
    """Work for the thread, and the future that tells the loop about it.

    `done` says that result and error are final: a writer may still roll back what went well.
    """

    __slots__ = ("_lock", "_started", "done", "error", "future", "result", "settled", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], T], future: asyncio.Future[T]) -> None:
        self.work = work
        self.result: T | None = None
        self.error: Exception | None = None
        self.done = False
        self.future = future
        self.settled = False
        self._lock = threading.Lock()
        self._started: bool | None = False  # None: withdrawn

    def claim(self) -> bool:
        """Taken by the thread; False when the caller withdrew it before."""
        with self._lock:
            if self._started is None:
                return False
            self._started = True
            return True

    def withdraw(self) -> bool:
        """Taken back by the caller; False when the thread has it already."""
        with self._lock:
            if self._started:
                return False
            self._started = None
            return True

    def run(self, connection: sqlite3.Connection) -> None:
        """Do the work and remember how it went; the loop hears of it from `settle`."""
        try:
            self.succeed(self.work(connection))
        except Exception as exc:  # any fault belongs to the caller of this job, not to the thread
            self.fail(exc)

    def succeed(self, result: T) -> None:
        """Remember the result."""
        self.result, self.error = result, None

    def fail(self, error: Exception) -> None:
        """Remember the fault."""
        self.error = error

    def renew(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait with a new future; the old one was cancelled. On the loop."""
        if self.future.done() and not self.future.cancelled():
            self.future.exception()  # seen, or asyncio would complain
        self.future = loop.create_future()
        if self.settled:
            self.settle()

    def settle(self) -> None:
        """Tell the caller; on the loop."""
        self.settled = True
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # set by run()


class DbThread:
    """Runs jobs one after the other on its own connection; for reads."""

    def __init__(
        self, connect: Connect, *, name: str, timeout_ms: int, grace_s: float = GRACE_S
    ) -> None:
        self._connect = connect
        self._name, self._timeout_ms, self._grace_s = name, timeout_ms, grace_s
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Start the thread; the connection is made there, with the first job."""
        self._loop = asyncio.get_running_loop()
        # A daemon, because a process that dies without closing must not hang: SQLite's log makes
        # every commit whole at any point of an exit.
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work` on the thread's connection.

        The caller's cancellation waits until the outcome is known and is delivered at the caller's
        next await: what it keeps in memory never differs from the file. Past the time limit a job
        that has not started is withdrawn (`StoreBusy`); one that has is `StoreUnavailable` with
        `outcome_unknown`.
        """
        if self._thread is None or self._loop is None:
            raise StoreUnavailable("the store is not open")
        job = Job(work, self._loop.create_future())
        self._jobs.put(job)
        interrupted = False
        try:
            while True:
                try:
                    return await self._outcome(job, self._loop)
                except asyncio.CancelledError:
                    # Not of a cancel scope, which the shield holds off, but of the task itself: so
                    # a gRPC server ends the handlers of clients that went away.
                    interrupted = True
                    job.renew(self._loop)
        finally:
            if interrupted:
                cancel_again()

    async def _outcome(self, job: Job[T], loop: asyncio.AbstractEventLoop) -> T:
        with anyio.move_on_after(self._timeout_ms / 1000, shield=True):
            return await job.future
        if job.withdraw():
            raise StoreBusy(f"the database is busy: nothing was done within {self._timeout_ms} ms")
        job.renew(loop)
        with anyio.move_on_after(self._grace_s, shield=True):
            return await job.future
        raise StoreUnavailable(
            f"the database did not answer within {self._timeout_ms} ms", outcome_unknown=True
        )

    async def stop(self) -> None:
        """Finish what was submitted, close the connection, end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._jobs.put(None)
        with anyio.move_on_after(JOIN_TIMEOUT_S, shield=True):
            await self._ended.wait()
            thread.join()

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        while (first := self._jobs.get()) is not None:
            group, last = self._collect(first)
            if group:
                connection = self._attempt(connection, group)
                self._settle(group)
            if last:
                break
        if connection is not None:
            connection.close()
        self._on_loop(self._ended.set)

    def _attempt(
        self, connection: sqlite3.Connection | None, group: list[Job[object]]
    ) -> sqlite3.Connection | None:
        """Work on `group`; the connection for the next one, or None to make a new one for it."""
        try:
            connection = connection or self._connect()
            self._work(connection, group)
        except Exception as exc:  # no connection, or one that cannot even roll back
            for job in group:
                if not job.done:
                    job.fail(exc)
            if connection is not None:
                connection.close()
            return None
        return connection

    def _collect(self, first: Job[object]) -> tuple[list[Job[object]], bool]:
        """What waits now, up to a limit, and whether the end was among it."""
        group = [first] if first.claim() else []
        while len(group) < MAX_GROUP:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, True
            if job.claim():
                group.append(job)
        return group, False

    def _work(self, connection: sqlite3.Connection, group: list[Job[object]]) -> None:
        for job in group:
            job.run(connection)
            job.done = True

    def _settle(self, group: list[Job[object]]) -> None:
        def tell() -> None:
            for job in group:
                job.settle()

        self._on_loop(tell)

    def _on_loop(self, call: Callable[[], None]) -> None:
        # A loop that is closed has taken everybody who waited with it.
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call)
