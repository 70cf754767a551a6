"""What a router knows and does about the others of its store, when a session changes hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lemon_core.logs import get_logger
from lemon_router.admission import Admission
from lemon_router.lifecycle import Lifecycle
from lemon_router.ownership import End
from lemon_router.surroundings import Surroundings

log = get_logger("lemon_router.others")


class OtherRouters:
    """One router as its `SharedOwnership` needs it (`ownership.Owner`)."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        around: Surroundings,
        recover: Callable[[], Awaitable[object]],
    ) -> None:
        self._lifecycle, self._ledger = lifecycle, lifecycle.ledger
        self._coordinator = lifecycle.coordinator
        self._engine, self._admissions = around.engine, around.admissions
        self._router_id, self._recover = around.journal.epoch, recover

    def is_active(self, session_key: str) -> bool:
        """True while a run of the session is active here."""
        return self._coordinator.active_run(session_key) is not None

    def abort_here(self, end: End) -> None:
        """Another router was asked to end what may be here."""
        if end.run_id is not None:
            self._coordinator.abort_run(end.run_id, end.reason)
        if end.session_key is not None:
            self._coordinator.abort_session(end.session_key, end.reason)

    def release_held(self) -> None:
        """Start what may start by now."""
        self._coordinator.release_held()

    async def adopt(self) -> None:
        """Take over the runs of routers that are dead. Raises `StoreError`."""
        if not self._lifecycle.refusing:
            await self._recover()

    async def runs_elsewhere(self, session_key: str) -> bool:
        """True when a gateway may be at work on the session for another router.

        Runs that only wait there do so for the session itself. Raises `StoreError`.
        """
        for record in await self._admissions.all():
            other = record.router != self._router_id and not record.terminal
            if other and record.session_key == session_key and await self._works(record):
                return True
        return False

    async def _works(self, record: Admission) -> bool:
        if record.state == "submitted":
            return True
        try:
            snapshot = await self._engine.get_run(record.run_id)
        except Exception as exc:  # away: nobody can say that it does not
            log.info("others.gateway_away", run_id=record.run_id, error=str(exc))
            return True
        return snapshot is not None and snapshot.terminal is None

    async def left_by(self) -> set[str]:
        """The routers that have open records. Raises `StoreError`."""
        return {record.router for record in await self._admissions.all() if not record.terminal}

    async def let_go_of_others(self) -> None:
        """Forget runs that another router has adopted meanwhile. Raises `StoreError`."""
        for record in self._ledger.lives():
            stored = await self._admissions.get(record.run_id)
            if stored is not None and stored.router != self._router_id:
                log.warning("others.run_adopted", run_id=record.run_id, router=stored.router)
                self._lifecycle.let_go(record.run_id)
