"""Runs: begin marks, events while they live, summaries, and the sessions they belong to.

Two commits of a run are awaited and nothing is written between them. `begin` commits a mark before
the executor starts: a run that has one and no summary, and is not live, was lost with its process
and is never started again. `finalize` commits summary, chat state and the sessions index together,
before anybody is told that the run is over. Records of live and recent runs are in memory only; the
history keeps what was committed.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import anyio

from lemon_core import session_key as session_keys
from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store.backend import DeleteRuns, FinishRun, RunRow
from lemon_core.store.chat_state import CHAT, KEEP, ChatStateChange, chat_state_write
from lemon_core.store.core import DeleteKey, PutValue, Store, StoreWrite
from lemon_core.store.errors import StoreCorrupt
from lemon_core.store.keyed_lock import KeyedLock
from lemon_core.store.rows import parse_row
from lemon_core.store.run_history import encode_summary, plain_summary
from lemon_core.store.run_record import RecordBounds, RunRecord

log = get_logger("lemon_core.runs")

SESSIONS: Final = "sessions_index"
RUNS: Final = "runs"
RECORD_RETENTION_MS: Final = 600_000
HISTORY_PER_SESSION: Final = 50
HISTORY_MAX_AGE_MS: Final = 7 * 86_400_000
DEFAULT_EVENT_BYTES: Final = 256

FinalizeHook = Callable[[Mapping[str, object]], object]
"""Called with `{store, run_id, record, summary, session_key, started_at}`; may be async."""


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One row of the sessions index."""

    session_key: str
    agent_id: str | None
    origin: str
    created_at_ms: int
    updated_at_ms: int
    run_count: int


class RunStore:
    """The runs of one store, one instance for each; `hooks` gives the hooks of the moment."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        hooks: Callable[[], Iterable[object]] = tuple,
        bounds: RecordBounds | None = None,
    ) -> None:
        self._store, self._clock, self._hooks = store, clock, hooks
        self._records = cast(dict[str, RunRecord], store.memory_table(RUNS))
        self._bounds = RecordBounds() if bounds is None else bounds
        self._finalizing: set[str] = set()
        self._session_locks = KeyedLock()
        self._pending_hooks: deque[RunRecord] = deque()
        self._hook_lock = anyio.Lock(fast_acquire=True)
        self._wake = anyio.Event()

    async def begin(self, run_id: str, digest: bytes, *, session_key: str = "") -> bool:
        """Commit the begin mark; False when the run has one already (it must not start again).

        Raises `StoreError`; then the run must not start either.
        """
        row = RunRow(run_id, session_key, self._clock.now_ms(), digest)
        if not await self._store.backend.begin_run(row):
            return False
        self._records[run_id] = RunRecord(run_id, session_key, row.started_at_ms, digest)
        return True

    async def begun(self, run_id: str) -> bytes | None:
        """The digest of the run's begin mark; None when it never began. Raises `StoreError`."""
        record = await self.get(run_id)
        return None if record is None else record.digest

    async def get(self, run_id: str) -> RunRecord | None:
        """The run's record, from memory or else from the history (without events).

        Unlike other reads this one raises `StoreError`: a run that cannot be looked up is not
        absent.
        """
        record = self._records.get(run_id)
        if record is not None:
            return record
        row = await self._store.backend.get_run(run_id)
        return None if row is None else self._from_row(row)

    def live(self, run_id: str) -> bool:
        """True between `begin` and `finalize` in this process."""
        record = self._records.get(run_id)
        return record is not None and record.state == "live"

    def append_event(
        self, run_id: str, event: object, *, size_bytes: int = DEFAULT_EVENT_BYTES
    ) -> None:
        """Add an event to the record of a live run, in memory; other runs are ignored."""
        record = self._records.get(run_id)
        if record is not None and record.state == "live":
            self._bounds.add(record, event, size_bytes)
            self._shrink()

    async def finalize(
        self, run_id: str, summary: Mapping[str, object], chat_state: ChatStateChange = KEEP
    ) -> bool:
        """Commit the end of a run: summary, chat state and sessions index in one transaction.

        False, and nothing is written, when the run has a summary already. Raises `StoreError`; then
        nothing of it is stored and the call may be repeated. Hooks run afterwards, outside this
        call.
        """
        if run_id in self._finalizing:
            return False
        self._finalizing.add(run_id)
        try:
            record = await self.get(run_id)
            if record is not None and record.state == "finished":
                return False
            plain = plain_summary(summary)
            session_key = str(plain.get("session_key") or "")
            async with self._session_locks.hold(session_key):
                record = await self._commit_end(run_id, record, plain, session_key, chat_state)
        finally:
            self._finalizing.discard(run_id)
        self._after_commit(record)
        return True

    def drop(self, run_id: str) -> None:
        """Let the record of a finished run leave memory; the history keeps answering."""
        record = self._records.get(run_id)
        if record is not None and record.state != "live":
            del self._records[run_id]
            self._bounds.dropped(record)

    async def history(self, session_key: str, limit: int = 10) -> list[RunRecord]:
        """The session's finished runs, newest first. Raises `StoreError`."""
        rows = await self._store.backend.finished_runs(session_key, limit)
        return [self._from_row(row) for row in rows]

    async def list_sessions(
        self, *, agent_id: str | None = None, limit: int | None = None
    ) -> list[SessionEntry]:
        """Sessions that had a run, the one used last first."""
        rows = await self._store.list(SESSIONS)
        found = [_session_entry(value) for _, value in rows]
        kept = [s for s in found if agent_id is None or s.agent_id == agent_id]
        kept.sort(key=lambda s: (s.updated_at_ms, s.session_key), reverse=True)
        return kept[:limit]

    async def get_session(self, session_key: str) -> SessionEntry | None:
        """The session's row of the index."""
        value = await self._store.get(SESSIONS, session_key)
        return None if value is None else _session_entry(value)

    async def delete_session(self, session_key: str) -> None:
        """Forget the session: its index row, chat state and history, in one transaction."""
        async with self._session_locks.hold(session_key):
            await self._store.transaction(
                [
                    DeleteKey(SESSIONS, session_key),
                    DeleteKey(CHAT, session_key),
                    DeleteRuns(session_key),
                ]
            )
        for record in [r for r in self._records.values() if r.session_key == session_key]:
            self.drop(record.run_id)

    async def flush(self) -> None:
        """Return when the hooks of every run finalized so far have run."""
        async with self._hook_lock:
            while self._pending_hooks:
                await self._run_hooks(self._pending_hooks.popleft())

    async def serve_hooks(self) -> None:
        """Run finalize hooks as runs end, until cancelled."""
        while True:
            self._wake = anyio.Event()
            await self.flush()
            await self._wake.wait()

    async def sweep(self) -> None:
        """Let finished records leave memory after 10 minutes and old runs leave the history."""
        now = self._clock.now_ms()
        for record in list(self._records.values()):
            ended = record.finished_at_ms
            if ended is not None and now - ended > RECORD_RETENTION_MS:
                self.drop(record.run_id)
        await self._store.backend.sweep_runs(
            before_ms=now - HISTORY_MAX_AGE_MS, keep_per_session=HISTORY_PER_SESSION
        )

    async def _commit_end(
        self,
        run_id: str,
        record: RunRecord | None,
        summary: dict[str, object],
        session_key: str,
        chat_state: ChatStateChange,
    ) -> RunRecord:
        now = self._clock.now_ms()
        ended = RunRecord(run_id, session_key, now) if record is None else record
        encoded = encode_summary(self._store.codec, summary)
        row = RunRow(run_id, session_key, ended.started_at_ms, ended.digest, now, encoded)
        writes: list[StoreWrite] = [FinishRun(row)]
        if session_key:
            writes += chat_state_write(session_key, chat_state, now)
            writes.append(await self._session_write(session_key, summary, now))
        await self._store.transaction(writes)
        ended.session_key, ended.summary, ended.finished_at_ms = session_key, summary, now
        return ended

    async def _session_write(
        self, session_key: str, summary: Mapping[str, object], now: int
    ) -> PutValue:
        # Raises: a row that cannot be read now must not start again from one run.
        value = await self._store.load(SESSIONS, session_key)
        known = None if value is None else _session_entry(value)
        agent_id = summary.get("agent_id") or session_keys.agent_id(session_key)
        row = {
            "session_key": session_key,
            "agent_id": agent_id,
            "origin": str(summary.get("origin") or "unknown"),
            "created_at_ms": now if known is None else known.created_at_ms,
            "updated_at_ms": now,
            "run_count": 1 if known is None else known.run_count + 1,
        }
        return PutValue(SESSIONS, session_key, row)

    def _after_commit(self, record: RunRecord) -> None:
        record.state = "finished"
        self._records[record.run_id] = record
        self._bounds.finished(record)
        self._shrink()
        if record.session_key and any(True for _ in self._hooks()):
            self._pending_hooks.append(record)
            self._wake.set()

    def _shrink(self) -> None:
        while (run_id := self._bounds.excess()) is not None:
            self.drop(run_id)

    async def _run_hooks(self, record: RunRecord) -> None:
        facts = {
            "store": self,
            "run_id": record.run_id,
            "record": record,
            "summary": record.summary,
            "session_key": record.session_key,
            "started_at": record.started_at_ms,
        }
        for hook in _unique(self._hooks()):
            try:
                result = cast(FinalizeHook, hook)(facts)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # one hook must not keep the others from the run
                log.exception("runs.finalize_hook_failed", run_id=record.run_id, hook=repr(hook))

    def _from_row(self, row: RunRow) -> RunRecord:
        record = RunRecord(row.run_id, row.session_key, row.started_at_ms, row.digest)
        record.finished_at_ms = row.finished_at_ms
        if row.summary is None:
            record.state = "lost"
            return record
        summary = self._store.codec.decode(row.summary)
        if not isinstance(summary, Mapping):
            raise StoreCorrupt(f"the summary of run {row.run_id} is not a map")
        record.state, record.summary = "finished", summary
        return record


def _unique(hooks: Iterable[object]) -> Sequence[object]:
    seen: list[object] = []
    for hook in hooks:
        if not any(hook is other for other in seen):
            seen.append(hook)
    return seen


def _session_entry(value: object) -> SessionEntry:
    return parse_row(SessionEntry, value, "a row of the sessions index")
