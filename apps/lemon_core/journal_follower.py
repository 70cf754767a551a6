"""Positions of subscribers in a journal: cursors, not queues, so a slow one costs no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from lemon_core.bridges import RunSnapshot, StreamItem
from lemon_core.journal_run import RunJournal

BATCH = 256
UNSENT_LIMIT = 2_000


@dataclass(slots=True)
class _Cursor:
    seq: int
    foreign: bool = False  # its number belongs to another epoch: begin with the whole run


class Follower:
    """A subscriber's position in any number of runs; made by `Journal.follower`.

    `take` gives what is ready without waiting: per run in order, no gap and no repeat after the
    number it was added with. A run leaves by itself after its terminal event.
    """

    def __init__(
        self,
        epoch: str,
        runs: Mapping[str, RunJournal],
        followers: dict[str, dict[Follower, None]],
        unsent_limit: int,
    ) -> None:
        self.overflowed = asyncio.Event()
        """Set when more events than allowed arrived since `sending` was last called."""
        self._epoch = epoch
        self._runs = runs
        self._followers = followers
        self._unsent_limit = unsent_limit
        self._cursors: dict[str, _Cursor] = {}
        self._ready: dict[str, None] = {}
        self._woken = asyncio.Event()
        self._arrived = 0

    @property
    def active(self) -> bool:
        """True while there is a run to follow."""
        return bool(self._cursors)

    def add(self, run_id: str, after_seq: int = 0, epoch: str | None = None) -> bool:
        """Follow a run from after `after_seq`; False when the journal does not hold it.

        Adding it again moves the position.
        """
        run = self._runs.get(run_id)
        if run is None:
            self.discard(run_id)
            return False
        foreign = epoch is not None and epoch != self._epoch
        cursor = _Cursor(after_seq, foreign=foreign or after_seq > run.last_seq)
        if run.terminal is not None and after_seq == run.last_seq and not cursor.foreign:
            # It has everything: the end is told once more so that it need not wait for ever.
            cursor.seq -= 1
        self._cursors[run_id] = cursor
        self._followers.setdefault(run_id, {})[self] = None
        if cursor.foreign or cursor.seq < run.last_seq:
            self._ready[run_id] = None
            self._woken.set()
        return True

    def missed(self, run_id: str) -> tuple[int, bool]:
        """How many events of a followed run lie ahead, and whether a snapshot stands for some."""
        cursor, run = self._cursors.get(run_id), self._runs.get(run_id)
        if cursor is None or run is None:
            return 0, False
        if cursor.foreign:
            return run.last_seq, True
        return run.last_seq - cursor.seq, cursor.seq + 1 < run.first_seq

    def discard(self, run_id: str) -> None:
        """Stop following a run."""
        self._cursors.pop(run_id, None)
        self._ready.pop(run_id, None)
        followers = self._followers.get(run_id)
        if followers is not None:
            followers.pop(self, None)
            if not followers:
                del self._followers[run_id]

    def clear(self) -> None:
        """Stop following anything."""
        for run_id in tuple(self._cursors):
            self.discard(run_id)

    def wake(self, run_id: str) -> None:
        """The run has something new; called by the journal."""
        self._ready[run_id] = None
        self._arrived += 1
        if self._arrived > self._unsent_limit:
            self.overflowed.set()
        self._woken.set()

    def nudge(self) -> None:
        """End the current or the next `wait` although nothing is ready."""
        self._woken.set()

    def sending(self) -> None:
        """A frame is on its way: count anew how much arrives until the next one."""
        self._arrived = 0

    async def wait(self) -> None:
        """Return when something is ready, or after a nudge."""
        await self._woken.wait()

    def take(self, limit: int = BATCH) -> list[tuple[str, StreamItem | None]]:
        """What is ready, at most `limit` items; None stands for a run that is gone."""
        taken: list[tuple[str, StreamItem | None]] = []
        ready = self._ready
        while ready and len(taken) < limit:
            run_id = next(iter(ready))
            del ready[run_id]
            if run_id in self._cursors:
                self._take_run(run_id, taken, limit)
        if not ready:
            self._woken.clear()
        return taken

    def _take_run(
        self, run_id: str, taken: list[tuple[str, StreamItem | None]], limit: int
    ) -> None:
        cursor, run = self._cursors[run_id], self._runs.get(run_id)
        if run is None:
            self.discard(run_id)
            taken.append((run_id, None))
            return
        if cursor.foreign or cursor.seq + 1 < run.first_seq:
            snapshot = self._snapshot(run, cursor)
            cursor.seq, cursor.foreign = snapshot.last_event_seq, False
            taken.append((run_id, snapshot))
        events = run.after(cursor.seq, limit - len(taken))
        taken.extend((run_id, event) for event in events)
        cursor.seq += len(events)
        if cursor.seq < run.last_seq:
            self._ready[run_id] = None  # behind the others: no run starves
        elif run.terminal is not None:
            self.discard(run_id)

    def _snapshot(self, run: RunJournal, cursor: _Cursor) -> RunSnapshot:
        if cursor.foreign:
            # Its events cannot be told apart by number, so all that happened comes as one piece.
            return run.whole(self._epoch, with_end=False)
        return run.folded(self._epoch)
