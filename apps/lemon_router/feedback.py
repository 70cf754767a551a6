"""How runs turned out, by task and model: a file of its own, written from the bus.

The file is opened with the first outcome, in a thread of its own; a process without outcomes has
none. Who judges outcomes is `lemon_memory`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import anyio

from lemon_core.bus import Bus, Subscription
from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings
from lemon_core.store import StoreError
from lemon_core.system_events import RoutingFeedback

if TYPE_CHECKING:
    from lemon_core.store.db_thread import DbThread

log = get_logger("lemon_router.feedback")

T = TypeVar("T")

TOPIC: Final = "routing_feedback"
FILE: Final = "routing_feedback.sqlite3"
SWEEP_INTERVAL_MS: Final = 3_600_000
MAX_KEY_CHARS: Final = 2_000
TIMEOUT_MS: Final = 5_000

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS routing_feedback(
    id INTEGER PRIMARY KEY,
    fingerprint_key TEXT NOT NULL,
    outcome TEXT NOT NULL,
    duration_ms INTEGER,
    recorded_at_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS routing_feedback_keys ON routing_feedback(fingerprint_key);
CREATE INDEX IF NOT EXISTS routing_feedback_times ON routing_feedback(recorded_at_ms);
"""
_INSERT: Final = (
    "INSERT INTO routing_feedback(fingerprint_key, outcome, duration_ms, recorded_at_ms)"
    " VALUES (?, ?, ?, ?)"
)
_SWEEP: Final = "DELETE FROM routing_feedback WHERE recorded_at_ms < ?"


class Outcome(NamedTuple):
    """One row."""

    fingerprint_key: str
    outcome: str
    duration_ms: int | None
    recorded_at_ms: int


def feedback_file(config: LemonConfig, paths: PathSettings) -> Path:
    """Where the outcomes are: as configured, else beside the store."""
    from lemon_core.store.sqlite_file import FILE_SUFFIXES

    configured = config.router.routing_feedback.path
    if configured is None:
        store = paths.expand(config.store.path)
        return (store.parent if store.suffix in FILE_SUFFIXES else store) / FILE
    given = paths.expand(configured)
    return given if given.suffix in FILE_SUFFIXES else given / FILE


def enabled(config: LemonConfig) -> bool:
    """True when outcomes are kept."""
    wanted = config.features.routing_feedback in ("default-on", "on")
    return wanted and config.router.routing_feedback.subscribe


class FeedbackLog:
    """The file for writing; its methods raise `StoreError`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._thread: DbThread | None = None

    async def record(self, outcomes: Sequence[RoutingFeedback]) -> None:
        """Keep outcomes of now; those without a usable key or duration lose that."""
        now = self._clock.now_ms()
        rows = [
            Outcome(o.fingerprint_key, o.outcome, _duration(o.duration_ms), now)
            for o in outcomes
            if 0 < len(o.fingerprint_key) <= MAX_KEY_CHARS
        ]
        if rows:
            await self._run(lambda connection: _insert(connection, rows))

    async def sweep(self, retention_ms: int) -> int:
        """Forget what is older than `retention_ms`; how many that was."""
        if self._thread is None and not self.path.exists():
            return 0
        before = self._clock.now_ms() - retention_ms
        return await self._run(lambda connection: connection.execute(_SWEEP, (before,)).rowcount)

    async def close(self) -> None:
        """Finish what was submitted, and close the file."""
        if self._thread is not None:
            await self._thread.stop()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        from lemon_core.store.db_thread import DbThread
        from lemon_core.store.sqlite_file import translate

        if self._thread is None:
            self._thread = DbThread(self._connect, name="lemon-feedback", timeout_ms=TIMEOUT_MS)
            self._thread.start()
        try:
            return await self._thread.run(work)
        except sqlite3.Error as exc:
            raise translate(self.path, exc) from exc

    def _connect(self) -> sqlite3.Connection:
        from lemon_core.store.sqlite_file import connect, create_private

        create_private(self.path)
        connection = connect(self.path, busy_timeout_ms=TIMEOUT_MS)
        try:
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection


@asynccontextmanager
async def recording(
    config: LemonConfig, paths: PathSettings, bus: Bus, clock: Clock, *, sweeping: bool
) -> AsyncIterator[FeedbackLog]:
    """What the bus tells of outcomes is kept for the block; `sweeping` forgets what is too old."""
    kept = FeedbackLog(feedback_file(config, paths), clock)
    with bus.subscribe(TOPIC) as events:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_record, kept, events)
            if sweeping:
                tasks.start_soon(_sweep, kept, clock, config.router.routing_feedback.retention_ms)
            try:
                yield kept
            finally:
                tasks.cancel_scope.cancel()
        # What came last was published before this runtime began to end.
        events.close()
        with anyio.CancelScope(shield=True):
            await _record(kept, events)
            await kept.close()


async def _record(kept: FeedbackLog, events: Subscription) -> None:
    """Keep what comes, until the subscription ends."""
    while batch := await events.receive_batch():
        outcomes = [e.payload for e in batch if isinstance(e.payload, RoutingFeedback)]
        try:
            await kept.record(outcomes)
        except StoreError as exc:
            # A choice of models that is a little worse, and no run that fails for it.
            log.warning("feedback.not_recorded", count=len(outcomes), error=str(exc))


async def _sweep(kept: FeedbackLog, clock: Clock, retention_ms: int) -> None:
    while True:
        try:
            await kept.sweep(retention_ms)
        except StoreError as exc:
            log.warning("feedback.sweep_failed", error=str(exc))
        await clock.sleep(SWEEP_INTERVAL_MS)


def _duration(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _insert(connection: sqlite3.Connection, rows: Sequence[Outcome]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(_INSERT, rows)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
