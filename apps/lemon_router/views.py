"""What the router tells of sessions and runs: admissions, history and settings in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lemon_core import session_key as session_keys
from lemon_core.bridges import RunSnapshot, StreamItem
from lemon_core.events import Completion, coerce
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.store import RunStore, SessionEntry, SessionSettingsStore
from lemon_router.admission import Admission
from lemon_router.router import Router


class Asker(Protocol):
    """Who wants to know: a peer's id, and whether it may see what others submitted."""

    @property
    def id(self) -> str:
        """Whose runs are its own."""

    @property
    def is_admin(self) -> bool:
        """True when it may see all."""


class Views:
    """Read-only answers for RouterService; nothing here changes anything.

    Runs are seen by who submitted them, sessions by whoever submitted every run of them that is
    remembered; an admin sees all.
    """

    def __init__(self, router: Router, runs: RunStore, settings: SessionSettingsStore) -> None:
        self._router, self._runs, self._settings = router, runs, settings

    async def run(self, run_id: str) -> RunInfo | None:
        """One run, or None when it is unknown."""
        record = await self._router.record(run_id)
        return None if record is None else await self._info(record)

    async def runs(
        self,
        asker: Asker,
        *,
        session_key: str | None = None,
        states: Sequence[str] = (),
        limit: int = 100,
    ) -> list[RunInfo]:
        """Runs the asker may see, newest first."""
        found = [
            record
            for record in reversed(await self._router.records())
            if sees(asker, record)
            and session_key in (None, record.session_key)
            and (not states or record.state in states)
        ]
        return [await self._info(record) for record in found[:limit]]

    async def sessions(
        self, asker: Asker, *, active_only: bool = False, limit: int = 100
    ) -> list[SessionInfo]:
        """Stored sessions and those with work, last used first."""
        records = await self._by_session()
        entries = {entry.session_key: entry for entry in await self._runs.list_sessions()}
        busy = [key for key, of_it in records.items() if not all(r.terminal for r in of_it)]
        found = [
            await self._session_info(key, records.get(key, []), entries.get(key))
            for key in {**entries, **dict.fromkeys(busy)}
            if _owns(asker, records.get(key, []))
        ]
        found.sort(key=lambda info: (info.updated_at_ms or 0, info.session_key), reverse=True)
        return [info for info in found if info.active_run_id or not active_only][:limit]

    async def session(
        self, session_key: str, asker: Asker, *, run_limit: int = 10
    ) -> SessionView | None:
        """One session with its settings and recent runs, or None when it is unknown."""
        entry = await self._runs.get_session(session_key)
        records = (await self._by_session()).get(session_key, [])
        live = [record for record in records if not record.terminal]
        settings = await self._settings.get(session_key)
        chosen = settings.model or settings.thinking_level
        if (entry is None and not live and not chosen) or not _owns(asker, records):
            return None
        return SessionView(
            info=await self._session_info(session_key, records, entry),
            model=settings.model,
            thinking_level=settings.thinking_level,
            runs=tuple(await self._session_runs(session_key, records, run_limit)),
        )

    async def owns_session(self, session_key: str, asker: Asker) -> bool:
        """True when the asker may change the session."""
        return _owns(asker, (await self._by_session()).get(session_key, []))

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

    async def _by_session(self) -> dict[str, list[Admission]]:
        """The remembered runs by session, newest first."""
        found: dict[str, list[Admission]] = {}
        for record in reversed(await self._router.records()):
            found.setdefault(record.session_key, []).append(record)
        return found

    async def _session_runs(
        self, session_key: str, records: Sequence[Admission], limit: int
    ) -> list[RunInfo]:
        """Runs that are going on or in the history: what a reset forgot is told no more."""
        finished = {record.run_id for record in await self._runs.history(session_key, limit)}
        kept = [r for r in records if not r.terminal or r.run_id in finished]
        return [await self._info(record) for record in kept[:limit]]

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
            model=record.model,
            node_id=record.node_id,
            absorbed_by=record.absorbed_by,
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

    async def _session_info(
        self, key: str, records: Sequence[Admission], entry: SessionEntry | None
    ) -> SessionInfo:
        newest = records[0] if records else None
        live = [record for record in records if not record.terminal]
        made = [record.created_at_ms for record in live]
        used = [record.updated_at_ms for record in live]
        if entry is not None:
            made.append(entry.created_at_ms)
            used.append(entry.updated_at_ms)
        return SessionInfo(
            session_key=key,
            agent_id=(newest.agent_id if newest else session_keys.agent_id(key)) or "default",
            origin=_origin(newest, entry),
            active_run_id=await self._router.active_run(key),
            queued_count=self._router.queued_count(key),
            run_count=0 if entry is None else entry.run_count,
            created_at_ms=min(made, default=None),
            updated_at_ms=max(used, default=None),
        )


def sees(asker: Asker, record: Admission) -> bool:
    """True when the asker may see the run."""
    return asker.is_admin or record.owner == asker.id


def _origin(newest: Admission | None, entry: SessionEntry | None) -> str | None:
    if newest is not None:
        return newest.origin
    return None if entry is None else entry.origin


def _owns(asker: Asker, records: Sequence[Admission]) -> bool:
    """True when the session with these runs is the asker's alone, or everything is."""
    if asker.is_admin:
        return True
    return bool(records) and all(record.owner == asker.id for record in records)
