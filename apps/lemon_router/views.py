"""What the router tells of sessions and runs: admissions, history and settings in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lemon_core.bridges import RunSnapshot, StreamItem
from lemon_core.events import Completion, coerce
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.store import RunStore, SessionEntry, SessionSettingsStore
from lemon_router.admission import Admission
from lemon_router.router import Router

Visible = Callable[[Admission], bool]
"""Which runs the asker may see."""


class Views:
    """Read-only answers for RouterService; nothing here changes anything."""

    def __init__(self, router: Router, runs: RunStore, settings: SessionSettingsStore) -> None:
        self._router, self._runs, self._settings = router, runs, settings

    async def run(self, run_id: str) -> RunInfo | None:
        """One run, or None when it is unknown."""
        record = await self._router.record(run_id)
        return None if record is None else await self._info(record)

    async def runs(
        self,
        visible: Visible,
        *,
        session_key: str | None = None,
        states: Sequence[str] = (),
        limit: int = 100,
    ) -> list[RunInfo]:
        """Runs the asker may see, newest first."""
        found = [
            record
            for record in reversed(await self._router.records())
            if visible(record)
            and session_key in (None, record.session_key)
            and (not states or record.state in states)
        ]
        return [await self._info(record) for record in found[:limit]]

    async def sessions(
        self, visible: Visible, *, active_only: bool = False, limit: int = 100
    ) -> list[SessionInfo]:
        """Sessions with a run the asker may see, last used first."""
        keys: dict[str, Admission] = {}
        for record in reversed(await self._router.records()):
            if visible(record):
                keys.setdefault(record.session_key, record)
        infos = [await self._session_info(record) for record in keys.values()]
        return [info for info in infos if info.active_run_id or not active_only][:limit]

    async def session(
        self, session_key: str, visible: Visible, *, run_limit: int = 10
    ) -> SessionView | None:
        """One session with its settings and recent runs, or None when it is unknown."""
        runs = await self.runs(visible, session_key=session_key, limit=run_limit)
        if not runs:
            return None
        newest = await self._router.record(runs[0].run_id)
        if newest is None:
            return None
        settings = await self._settings.get(session_key)
        return SessionView(
            info=await self._session_info(newest),
            model=settings.model,
            thinking_level=settings.thinking_level,
            runs=tuple(runs),
        )

    async def past(self, run_id: str) -> tuple[StreamItem, ...]:
        """What a watcher is told of a run that the journal does not hold (any more)."""
        info = await self.run(run_id)
        if info is None or info.completion is None:
            return ()
        return (
            RunSnapshot(
                run_id=run_id,
                session_key=info.session_key,
                state="terminal",
                stream_epoch=self._router.journal.epoch,
                phase=info.phase or "",
                accumulated_text=info.completion.answer or "",
                resume=info.completion.resume,
                terminal=info.completion,
                duration_ms=info.duration_ms,
                started_at_ms=info.created_at_ms,
            ),
        )

    async def _info(self, record: Admission) -> RunInfo:
        completion, duration_ms = await self._end(record)
        return RunInfo(
            run_id=record.run_id,
            session_key=record.session_key,
            state=record.state,
            agent_id=record.agent_id,
            origin=record.origin,
            created_at_ms=record.created_at_ms,
            updated_at_ms=record.updated_at_ms,
            phase=self._phase(record),
            prompt=record.prompt,
            node_id=record.node_id,
            completion=completion,
            duration_ms=duration_ms,
        )

    def _phase(self, record: Admission) -> str:
        snapshot = self._router.journal.snapshot(record.run_id)
        if snapshot is not None and snapshot.phase:
            return snapshot.phase
        return record.state

    async def _end(self, record: Admission) -> tuple[Completion | None, int | None]:
        if not record.terminal:
            return None, None
        stored = await self._runs.get(record.run_id)
        summary = None if stored is None else stored.summary
        if summary is not None:
            completion = coerce("engine_completed", summary.get("completed"))
            duration = summary.get("duration_ms")
            if isinstance(completion, Completion):
                return completion, duration if isinstance(duration, int) else None
        error = record.error if isinstance(record.error, str | dict) else None
        return (
            Completion(
                ok=record.ok is True,
                error=error,
                run_id=record.run_id,
                session_key=record.session_key,
                meta={"synthetic": True},
            ),
            None,
        )

    async def _session_info(self, newest: Admission) -> SessionInfo:
        key = newest.session_key
        entry: SessionEntry | None = await self._runs.get_session(key)
        return SessionInfo(
            session_key=key,
            agent_id=newest.agent_id,
            origin=newest.origin,
            active_run_id=await self._router.active_run(key),
            queued_count=self._router.queued_count(key),
            run_count=0 if entry is None else entry.run_count,
            created_at_ms=newest.created_at_ms if entry is None else entry.created_at_ms,
            updated_at_ms=newest.updated_at_ms if entry is None else entry.updated_at_ms,
        )
