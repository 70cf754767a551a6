"""What a new process does about the runs that a former one left open.

| what is known of the run                        | what becomes of it                            |
|-------------------------------------------------|-----------------------------------------------|
| it has its summary                              | it ends as that says, once                    |
| an active run took its text                     | it is absorbed                                |
| the gateway knows it, or it was submitted       | a process looks for it (`RunProcess._found`)  |
| it has a begin mark, and nothing else           | the same process ends it as `run_lost`        |
| it was offered to a run that is looked for      | the end of that run tells whether it took it  |
| nothing                                         | it waits again, in order                      |

Nothing that may have had effects is executed again.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from pydantic import ValidationError

from lemon_core.bridges import RunSnapshot
from lemon_core.events import RunCompleted
from lemon_core.logs import get_logger
from lemon_core.store import RunRecord, StoreCorrupt
from lemon_router.admission import Admission, joined_by_run, revived_whole
from lemon_router.lifecycle import Lifecycle, end_state
from lemon_router.requests import Submission
from lemon_router.run_ends import completed_of
from lemon_router.run_process import Former, Records
from lemon_router.surroundings import Surroundings

log = get_logger("lemon_router.recovery")


class Recovery:
    """Reads the admissions once, before new work is taken.

    Without `resume` what has not begun is left in the store, for a process that lives long enough.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        around: Surroundings,
        runs: Records,
        *,
        router_id: str,
        resume: bool,
    ) -> None:
        self._lifecycle, self._ledger = lifecycle, lifecycle.ledger
        self._runs, self._router_id, self._resume = runs, router_id, resume
        self._engine, self._emit, self._alive = around.engine, around.emit, around.alive
        self._ownership = around.ownership
        self._taken: dict[str, str] = {}
        self._looked_for: list[tuple[Submission, Former]] = []
        self._waiting: list[tuple[Submission, str | None]] = []
        self._ended: list[tuple[Submission, RunCompleted]] = []

    async def run(self) -> int:
        """Go on with every open run; how many there were. Raises `StoreError`."""
        records = await self._ledger.load_all()
        joined = joined_by_run(records)
        still_open = [r for r in [await self._adopted(record) for record in records] if r]
        for record in still_open:
            await self._sort(record, joined)
        await self._restore()
        for submission, completed in self._ended:
            said = bool((completed.completed.answer or "").strip())
            await self._lifecycle.tell_end(submission, completed, said)
        return len(still_open)

    async def _adopted(self, record: Admission) -> Admission | None:
        """The record, kept as this router's; None when it is over or another one cares for it."""
        if record.terminal or self._ledger.live(record.run_id) is not None:
            return None
        if self._alive is None:
            self._ledger.keep(record)
            return record
        if record.router == self._router_id or await self._alive(record.router):
            return None
        return await self._ledger.adopt(record, self._router_id)

    async def _sort(self, record: Admission, joined: Mapping[str, list[Admission]]) -> None:
        stored = await self._runs.get(record.run_id)
        summary = None if stored is None else stored.summary
        if summary is not None:
            self._note_steers(record.run_id, summary.get("applied_steers"))
            self._note_end(record, stored, joined)
            await self._end(record, summary.get("completed"), "completed")
            return
        if stored is None and not self._resume:
            self._ledger.forget(record.run_id)
            return
        try:
            submission = revived_whole(record, joined)
        except StoreCorrupt as exc:
            log.error("recovery.damaged", run_id=record.run_id, error=str(exc))
            await self._end(record, {"ok": False, "error": "admission_damaged"}, "damaged")
            return
        former = await self._former(record, stored)
        if former is not None:
            self._looked_for.append((submission, former))
        else:
            self._waiting.append((submission, record.offered_to))

    def _note_end(
        self, record: Admission, stored: RunRecord | None, joined: Mapping[str, list[Admission]]
    ) -> None:
        """What follows an end was not done by the process that is gone, or may be done twice."""
        try:
            if stored is not None:
                self._ended.append((revived_whole(record, joined), completed_of(stored)))
        except (StoreCorrupt, ValidationError) as exc:
            log.error("recovery.damaged", run_id=record.run_id, error=str(exc))

    async def _former(self, record: Admission, stored: RunRecord | None) -> Former | None:
        """Set when the run may be, or have been, with a gateway."""
        snapshot = await self._snapshot(record.run_id)
        if snapshot is not None:
            self._note_steers(record.run_id, snapshot.applied_steers)
        if snapshot is None and stored is None and record.state == "accepted":
            return None
        return Former(record.stream_epoch, record.last_event_seq)

    async def _snapshot(self, run_id: str) -> RunSnapshot | None:
        try:
            return await self._engine.get_run(run_id)
        except Exception as exc:  # away: what was submitted is looked for later
            log.info("recovery.gateway_away", run_id=run_id, error=str(exc))
            return None

    def _note_steers(self, run_id: str, applied: object) -> None:
        if isinstance(applied, list | tuple):
            self._taken.update({str(steer): run_id for steer in applied})

    async def _end(self, record: Admission, completed: object, action: str) -> None:
        """A run whose end is known: its record says so, and nothing else happens any more."""
        facts = completed if isinstance(completed, Mapping) else {}
        ok, error = facts.get("ok") is True, facts.get("error")
        await self._ledger.advance(
            record.run_id, surely=True, state=end_state(ok, error), ok=ok, error=error
        )
        self._ledger.forget(record.run_id)
        self._emit("lemon.router.recovery", {"action": action})

    async def _restore(self) -> None:
        async with anyio.create_task_group() as tasks:
            for submission, _ in self._looked_for:
                tasks.start_soon(self._ownership.take, submission.session_key)
        # Each goes to the front of its line.
        for submission, former in reversed(self._looked_for):
            self._emit("lemon.router.recovery", {"action": "looked_for"})
            self._lifecycle.restore(submission, former)
        # Those that may be running come first, whatever was to interrupt them.
        self._lifecycle.coordinator.release_held()
        looked_for = {submission.run_id for submission, _ in self._looked_for}
        for submission, offered_to in self._waiting:
            if submission.run_id in self._taken:
                await self._absorb(submission.run_id, self._taken[submission.run_id])
                continue
            self._emit("lemon.router.recovery", {"action": "queued"})
            still_offered = offered_to if offered_to in looked_for else None
            self._lifecycle.restore(submission, offered_to=still_offered)
        self._lifecycle.coordinator.release_held()

    async def _absorb(self, run_id: str, by: str) -> None:
        self._emit("lemon.router.recovery", {"action": "absorbed"})
        await self._ledger.advance(
            run_id, surely=True, state="absorbed", absorbed_by=by, absorbed_as="steer"
        )
        self._ledger.forget(run_id)
