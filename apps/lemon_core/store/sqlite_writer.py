"""The one writer of a SQLite file: whatever waits becomes one transaction and one sync of the disk.

Each caller hears about its own part, and only after the commit. A job that fails takes nobody
along: the group is rolled back and its jobs are run again one by one.

Every call into SQLite lets go of the interpreter's lock and has to win it back, which may take
milliseconds beside a busy event loop. So plain writes of a group are joined: one statement for all
rows of a table, however many callers wrote them, and no explicit transaction around a single one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lemon_core.clock import Clock
from lemon_core.store.backend import Delete, DeleteRuns, FinishRun, Put, RunRow, Write
from lemon_core.store.db_thread import DbThread, Job

# SQLite takes 32,766 parameters in one statement, and a row has up to six.
_ROWS_PER_STATEMENT = 1_000

# REPLACE gives the row a new rowid, which tells the order of writing within a millisecond.
_PUT = "INSERT OR REPLACE INTO lemon_store_kv VALUES "
_IF = " lemon_store_kv WHERE table_name=? AND key_blob=? AND value_blob=?"
_PUT_NEW = (
    "INSERT INTO lemon_store_kv VALUES (?,?,?,?) ON CONFLICT (table_name, key_blob) DO NOTHING"
)
_PUT_IF = f"INSERT OR REPLACE INTO lemon_store_kv SELECT ?,?,?,? WHERE EXISTS (SELECT 1 FROM{_IF})"
_DELETE_IF = f"DELETE FROM{_IF}"
_ABSENT = "SELECT 1 FROM lemon_store_kv WHERE table_name=? AND key_blob=?"
_DELETE = "DELETE FROM lemon_store_kv WHERE (table_name, key_blob) IN (VALUES "
_BEGIN_RUN = "INSERT OR IGNORE INTO run_history VALUES "
_FINISH_RUN = "INSERT INTO run_history VALUES "
_KEEP_MARK = (
    " ON CONFLICT (run_id) DO UPDATE SET session_key=excluded.session_key,"
    " finished_at_ms=excluded.finished_at_ms, summary_blob=excluded.summary_blob"
)
_DELETE_RUNS = "DELETE FROM run_history WHERE session_key=?"


@dataclass(frozen=True, slots=True)
class BeginRun:
    """Put a begin mark into the history if the run is not there."""

    row: RunRow


@dataclass(frozen=True, slots=True)
class Statement:
    """One call into SQLite; `marks` begin marks must be new for it to have gone well."""

    sql: str
    parameters: list[object]
    marks: int = 0


class Batch:
    """Writes as a job for the writer; its result tells whether all begin marks in it were new."""

    def __init__(self, writes: Sequence[Write | BeginRun], clock: Clock) -> None:
        self.writes, self._clock = writes, clock

    def __call__(self, connection: sqlite3.Connection) -> bool:
        """Run the statements."""
        return run_statements(connection, self.statements())

    def joined(self, others: Sequence[Batch]) -> Batch:
        """This batch followed by `others`, as one."""
        writes = [write for batch in (self, *others) for write in batch.writes]
        return Batch(writes, self._clock)

    def statements(self) -> list[Statement]:
        """As few statements as do the same: one for each table and kind of write.

        Only the removal of a session's history has to stay between what is before and after it.
        """
        now = self._clock.now_ms()
        found: list[Statement] = []
        segment: list[Write | BeginRun] = []
        for write in self.writes:
            if isinstance(write, DeleteRuns):
                found += _join(segment, now)
                found.append(Statement(_DELETE_RUNS, [write.session_key]))
                segment = []
            else:
                segment.append(write)
        return [*found, *_join(segment, now)]


@dataclass(frozen=True, slots=True)
class Swap:
    """Replaces the value of a key if it is `expected` (None: absent) as a job for the writer.

    One call into SQLite, comparison included; its result tells whether it was.
    """

    table: str
    key: bytes
    expected: bytes | None
    new: bytes | None
    clock: Clock

    def __call__(self, connection: sqlite3.Connection) -> bool:
        """Run the statement."""
        row = (self.table, self.key)
        if self.new is None:
            if self.expected is None:
                return connection.execute(_ABSENT, row).fetchone() is None
            return connection.execute(_DELETE_IF, (*row, self.expected)).rowcount == 1
        put = (*row, self.new, self.clock.now_ms())
        if self.expected is None:
            return connection.execute(_PUT_NEW, put).rowcount == 1
        return connection.execute(_PUT_IF, (*put, *row, self.expected)).rowcount == 1


def run_statements(connection: sqlite3.Connection, statements: Sequence[Statement]) -> bool:
    """Run them in order; False when a begin mark was there already."""
    fresh = True
    for statement in statements:
        cursor = connection.execute(statement.sql, statement.parameters)
        fresh = fresh and (not statement.marks or cursor.rowcount == statement.marks)
    return fresh


def _join(writes: Sequence[Write | BeginRun], now_ms: int) -> Iterator[Statement]:
    """Statements for writes whose order counts only where they touch the same key."""
    marks: list[list[object]] = []
    ends: dict[str, list[object]] = {}
    values: dict[tuple[str, bytes], bytes | None] = {}
    for write in writes:
        if isinstance(write, Put):
            # Taken out first, so that the order of the rows is the order of the last writes.
            values.pop((write.table, write.key), None)
            values[write.table, write.key] = write.value
        elif isinstance(write, Delete):
            values[write.table, write.key] = None
        elif isinstance(write, FinishRun):
            row = write.row
            ends[row.run_id] = [*_mark(row), row.finished_at_ms, row.summary]
        elif isinstance(write, BeginRun):
            marks.append(_mark(write.row))
    puts = [[*key, value, now_ms] for key, value in values.items() if value is not None]
    deletes = [list[object](key) for key, value in values.items() if value is None]
    yield from _rows(_BEGIN_RUN, marks, "(?,?,?,?,NULL,NULL)", marks=True)
    yield from _rows(_FINISH_RUN, list(ends.values()), "(?,?,?,?,?,?)", _KEEP_MARK)
    yield from _rows(_PUT, puts, "(?,?,?,?)")
    yield from _rows(_DELETE, deletes, "(?,?)", ")")


def _mark(row: RunRow) -> list[object]:
    return [row.run_id, row.session_key, row.started_at_ms, row.digest]


def _rows(
    head: str, rows: Sequence[Sequence[object]], row: str, tail: str = "", *, marks: bool = False
) -> Iterator[Statement]:
    """`head`, one `row` for each of `rows`, `tail`; in several statements when they are many."""
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        part = rows[start : start + _ROWS_PER_STATEMENT]
        sql = f"{head}{','.join([row] * len(part))}{tail}"
        parameters = [value for values in part for value in values]
        yield Statement(sql, parameters, len(part) if marks else 0)


class GroupWriter(DbThread):
    """Runs jobs in groups, each group in one transaction."""

    def _work(self, connection: sqlite3.Connection, group: list[Job[object]]) -> None:
        if not self._commit(connection, group):
            for job in group:
                self._commit(connection, [job])

    def _commit(self, connection: sqlite3.Connection, group: list[Job[object]]) -> bool:
        """Run `group` as one transaction; afterwards each job of it is done.

        False, and everything rolled back, when the jobs have to be run one by one: one of several
        failed or found its begin mark taken. When the transaction itself cannot begin or commit,
        that is the answer to every job of it.
        """
        try:
            if not _run_alone(connection, group):
                connection.execute("BEGIN IMMEDIATE")
                well = _run_joined(connection, group)
                if not well and len(group) > 1:
                    _roll_back(connection)
                    return False
                if group[0].error is None:
                    connection.execute("COMMIT")
                else:
                    _roll_back(connection)
        except sqlite3.Error as exc:
            _roll_back(connection)
            for job in group:
                job.fail(exc)
        for job in group:
            job.done = True
        return True


def _run_alone(connection: sqlite3.Connection, group: Sequence[Job[object]]) -> bool:
    """Run a single job of a single statement, which is its own transaction; False for others."""
    work = group[0].work
    if len(group) > 1 or not isinstance(work, Batch | Swap):
        return False
    if isinstance(work, Swap):
        group[0].succeed(work(connection))
        return True
    statements = work.statements()
    if len(statements) > 1:
        return False
    group[0].succeed(run_statements(connection, statements))
    return True


def _run_joined(connection: sqlite3.Connection, group: Sequence[Job[object]]) -> bool:
    """Run the jobs in order, batches that follow each other as one.

    False as soon as one did not go well: it carries its error, or a begin mark was taken.
    """
    waiting: list[Job[object]] = []
    for job in group:
        if isinstance(job.work, Batch):
            waiting.append(job)
            continue
        if not _run_batches(connection, waiting):
            return False
        waiting = []
        job.run(connection)
        if job.error is not None:
            return False
    return _run_batches(connection, waiting)


def _run_batches(connection: sqlite3.Connection, jobs: Sequence[Job[object]]) -> bool:
    batches = [job.work for job in jobs if isinstance(job.work, Batch)]
    if not batches:
        return True
    try:
        result = batches[0].joined(batches[1:])(connection)
    except sqlite3.Error as exc:
        for job in jobs:
            job.fail(exc)
        return False
    for job in jobs:
        job.succeed(result)
    return result


def _roll_back(connection: sqlite3.Connection) -> None:
    # A full disk, among others, makes SQLite roll back by itself.
    if connection.in_transaction:
        connection.execute("ROLLBACK")
