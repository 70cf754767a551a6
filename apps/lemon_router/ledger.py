"""The admission records of runs that have not ended, in memory as they are in the store.

One write of a record at a time: each is a compare-and-swap from the one before. A run that took the
text of others is not sent to the gateway before their records say so (`settled`): after a crash the
same text would otherwise run twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import anyio

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.store import StoreError
from lemon_core.util import capped_backoff
from lemon_router.admission import Admission, AdmissionStore

log = get_logger("lemon_router.ledger")

RETRY_BASE_MS = 100
RETRY_MAX_MS = 2_000


class Ledger:
    """Live records of one router over its `AdmissionStore`."""

    def __init__(
        self,
        admissions: AdmissionStore,
        clock: Clock,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._admissions, self._clock, self._spawn = admissions, clock, spawn
        self._records: dict[str, Admission] = {}
        # Who may watch a run; kept as long as its journal.
        self._owners: dict[str, str] = {}
        self._writes: dict[str, anyio.Lock] = {}
        self._absorbing: dict[str, list[anyio.Event]] = {}
        self._order = 0

    # Records

    def next_order(self) -> int:
        """A number above those of all runs admitted before, by this process or a former one."""
        self._order = max(self._order + 1, self._clock.now_ms() * 1_000)
        return self._order

    async def put_new(self, admission: Admission) -> bool:
        """Store and keep a new record; False when the run id is taken. Raises `StoreError`."""
        if not await self._admissions.put_new(admission):
            return False
        self.keep(admission)
        return True

    def keep(self, admission: Admission) -> None:
        """Keep a stored record of a run that has not ended."""
        self._records[admission.run_id] = admission
        self._owners[admission.run_id] = admission.owner
        self._order = max(self._order, admission.order)

    async def adopt(self, admission: Admission, router_id: str) -> Admission | None:
        """Keep the record of a router that is gone; None when another one was faster.

        Raises `StoreError`.
        """
        adopted = await self._admissions.advance(admission, router=router_id)
        if adopted is not None:
            self.keep(adopted)
        return adopted

    async def withdraw(self, run_id: str) -> None:
        """Remove the record of a run that was refused after all. Raises `StoreError`."""
        record = self._records.get(run_id)
        if record is not None:
            await self._admissions.withdraw(record)
            self.forget(run_id)
            self._owners.pop(run_id, None)

    def live(self, run_id: str) -> Admission | None:
        """The record of a run that has not ended."""
        return self._records.get(run_id)

    def lives(self) -> list[Admission]:
        """The records of all runs that have not ended."""
        return list(self._records.values())

    async def load(self, run_id: str) -> Admission | None:
        """The record of any run. Raises `StoreError`."""
        return self._records.get(run_id) or await self._admissions.get(run_id)

    async def load_all(self) -> list[Admission]:
        """All records, oldest first; live ones as they are now. Raises `StoreError`."""
        stored = await self._admissions.all()
        return [self._records.get(record.run_id, record) for record in stored]

    def forget(self, run_id: str) -> None:
        """The run has its end; only the store remembers it."""
        self._records.pop(run_id, None)
        self._writes.pop(run_id, None)

    # Owners

    def owner(self, run_id: str) -> str | None:
        """The caller that submitted a run, while it is not over or its journal is kept."""
        return self._owners.get(run_id)

    def forget_owner(self, run_id: str) -> None:
        """The run's journal is gone; only its record answers from now on."""
        self._owners.pop(run_id, None)

    # Writes

    async def advance(self, run_id: str, *, surely: bool = False, **changes: object) -> None:
        """Write `changes`; a failure is logged, or with `surely` tried again until it works."""
        async with self._writes.setdefault(run_id, anyio.Lock(fast_acquire=True)):
            for attempt in count():
                try:
                    await self._write(run_id, changes)
                    return
                except StoreError as exc:
                    log.error("admission.write_failed", run_id=run_id, error=str(exc))
                if not surely:
                    return
                await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))

    async def _write(self, run_id: str, changes: dict[str, object]) -> None:
        record = self._records.get(run_id)
        while record is not None and not record.terminal:
            now_ms = self._clock.now_ms()
            changed = await self._admissions.advance(record, updated_at_ms=now_ms, **changes)
            if changed is not None:
                self._records[run_id] = changed
                return
            # Another writer was faster: what it wrote stays, and this goes on top.
            log.warning("admission.changed_elsewhere", run_id=run_id)
            found = await self._admissions.get(run_id)
            record = None if found == record else found

    def absorb(self, run_id: str, by: str, mode: str) -> None:
        """Write behind that `run_id` has become part of `by`."""
        done = anyio.Event()
        self._absorbing.setdefault(by, []).append(done)

        async def write() -> None:
            try:
                await self.settled(run_id)
                await self.advance(
                    run_id, surely=True, state="absorbed", absorbed_by=by, absorbed_as=mode
                )
                self.forget(run_id)
            finally:
                done.set()

        self._spawn(write)

    async def settled(self, run_id: str) -> None:
        """Return when the store knows of everything that `run_id` has absorbed."""
        for written in self._absorbing.pop(run_id, ()):
            await written.wait()

    def let_go(self, run_id: str, write: Callable[[], Awaitable[None]]) -> None:
        """Write the end of a run behind, and forget it."""

        async def write_and_forget() -> None:
            await write()
            self.forget(run_id)

        self._spawn(write_and_forget)
