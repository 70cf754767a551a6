"""Sessions and runs as the store has them, for when no server is there to ask."""

from __future__ import annotations

from collections.abc import Sequence

from lemon_core.events import Completion, coerce
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.store import RunStore, SessionEntry, SessionSettingsStore
from lemon_core.store.run_record import RunRecord

RUNS_PER_SESSION = 50


class StoredWork:
    """The reading calls of `RouterClient`, of what has ended: nothing runs without a server."""

    def __init__(self, runs: RunStore, settings: SessionSettingsStore) -> None:
        self._runs, self._settings = runs, settings

    async def list_sessions(
        self, *, active_only: bool = False, limit: int | None = None
    ) -> list[SessionInfo]:
        """Stored sessions, last used first."""
        if active_only:
            return []
        return [_session(entry) for entry in await self._runs.list_sessions(limit=limit)]

    async def get_session(
        self, session_key: str, run_limit: int | None = None
    ) -> SessionView | None:
        """One session with its settings and recent runs; None when it is unknown."""
        entry = await self._runs.get_session(session_key)
        if entry is None:
            return None
        settings = await self._settings.get(session_key)
        records = await self._runs.history(session_key, run_limit or 10)
        runs = tuple(_run(record) for record in records)
        return SessionView(_session(entry), settings.model, settings.thinking_level, runs)

    async def list_runs(
        self,
        session_key: str | None = None,
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Finished runs, newest first."""
        keys = [session_key] if session_key else await self._session_keys()
        found = [
            run
            for key in keys
            for run in map(_run, await self._runs.history(key, RUNS_PER_SESSION))
            if not states or run.state in states
        ]
        found.sort(key=lambda run: (run.created_at_ms, run.run_id), reverse=True)
        return found[:limit]

    async def get_run(self, run_id: str) -> RunInfo | None:
        """One run; None when it is unknown."""
        record = await self._runs.get(run_id)
        return None if record is None else _run(record)

    async def _session_keys(self) -> list[str]:
        return [entry.session_key for entry in await self._runs.list_sessions()]


def _session(entry: SessionEntry) -> SessionInfo:
    return SessionInfo(
        session_key=entry.session_key,
        agent_id=entry.agent_id or "default",
        origin=entry.origin,
        run_count=entry.run_count,
        created_at_ms=entry.created_at_ms,
        updated_at_ms=entry.updated_at_ms,
    )


def _run(record: RunRecord) -> RunInfo:
    summary = record.summary or {}
    completion = coerce("engine_completed", summary.get("completed"))
    if not isinstance(completion, Completion):
        # Begun by a process that is gone, and never ended.
        completion = Completion(ok=False, error="run_lost", run_id=record.run_id)
    duration = summary.get("duration_ms")
    return RunInfo(
        run_id=record.run_id,
        session_key=record.session_key,
        state="completed" if completion.ok else "failed",
        agent_id=str(summary.get("agent_id") or "default"),
        origin=str(summary.get("origin") or "unknown"),
        created_at_ms=record.started_at_ms,
        updated_at_ms=record.finished_at_ms or record.started_at_ms,
        prompt=_text(summary.get("prompt")),
        model=_text(summary.get("model")),
        completion=completion,
        duration_ms=duration if isinstance(duration, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
