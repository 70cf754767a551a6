"""The event journal of runs: what gateway and router replay to late and returning subscribers.

Per run, events are numbered from 1 without gaps. While a run lives, and for a while after its end,
a subscriber can go on after any number: with the single events where they are still held, else with
one snapshot that stands for them. Memory is bounded per run and in all, and ended runs have smaller
bounds of their own. What gives way first are single events of ended runs, then ended runs as a
whole, then single events of live ones, then the details of their actions. The texts of live runs
always stay.

Nothing here is thread-safe; everything happens on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

from lemon_core.bridges import RunNotFound, RunSnapshot, RunState, StreamItem, StreamLost
from lemon_core.clock import Clock
from lemon_core.events import Event
from lemon_core.journal_follower import UNSENT_LIMIT, Follower
from lemon_core.journal_run import TERMINAL_TYPES, RunJournal

if TYPE_CHECKING:
    from lemon_core.config.rpc import RpcSection

__all__ = [
    "TERMINAL_TYPES",
    "Follower",
    "Journal",
    "JournalLimits",
    "Past",
    "event_seq",
    "stream",
]

MIB = 1024 * 1024
_SWEEP_PAUSE_MS = 10_000

Past = Callable[[str], Awaitable[Sequence[StreamItem]]]
"""What a subscriber is told of a run that no journal holds; nothing when the run is unknown."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Bounds of a journal; bytes are estimates of memory, not of the wire form."""

    max_events: int = 10_000
    max_bytes: int = 8 * MIB
    total_max_bytes: int = 64 * MIB
    retention_ms: int = 600_000
    ended_max_runs: int = 300
    """How many ended runs are held; for older ones the store answers."""
    ended_max_bytes: int = 4 * MIB
    """What those may take that still hold single events: nearly always a snapshot serves whoever
    comes after the end as well, and it is a tenth of the size."""

    @classmethod
    def of_section(cls, section: RpcSection) -> JournalLimits:
        """The `journal_*` keys of `[gateway.rpc]` or `[router.rpc]`."""
        return cls(
            max_events=section.journal_max_events,
            max_bytes=section.journal_max_bytes,
            total_max_bytes=section.journal_total_max_bytes,
            retention_ms=section.journal_retention_ms,
        )


def event_seq(event: Event) -> int:
    """The number of `event` in its run; 0 when nobody numbered it."""
    seq = event.meta.get("event_seq")
    return seq if isinstance(seq, int) else 0


class Journal:
    """All runs of one gateway or router, under one stream epoch.

    `on_drop(run_id)` is told of every run that leaves, so that its other records can go with it.
    """

    def __init__(
        self,
        *,
        epoch: str,
        clock: Clock,
        limits: JournalLimits | None = None,
        on_drop: Callable[[str], None] | None = None,
    ) -> None:
        self.epoch = epoch
        self.total_bytes = 0
        self._clock = clock
        self._limits = limits or JournalLimits()
        self._on_drop = on_drop
        self._runs: dict[str, RunJournal] = {}
        self._live: dict[str, None] = {}
        self._ended_at: dict[str, int] = {}  # in the order of their ends
        self._whole: dict[str, int] = {}  # bytes of ended runs that still hold single events
        self._whole_bytes = 0
        self._followers: dict[str, dict[Follower, None]] = {}

    # --- writing ---

    def open(
        self,
        run_id: str,
        session_key: str,
        *,
        state: RunState = "queued",
        phase: str = "",
        started_at_ms: int | None = None,
    ) -> None:
        """Begin the journal of a run; a known run is left as it is."""
        if run_id in self._runs:
            return
        self.sweep()
        run = RunJournal(run_id, session_key, state, phase)
        run.started_at_ms = started_at_ms
        self._runs[run_id] = run
        self._live[run_id] = None
        self.total_bytes += run.bytes
        self._fit_total()

    def note(
        self,
        run_id: str,
        *,
        state: RunState | None = None,
        phase: str | None = None,
        started_at_ms: int | None = None,
        applied_steer: str | None = None,
    ) -> None:
        """Remember facts of a live run that are no events; of ended runs only steers count."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if applied_steer is not None:
            run.steers.append(applied_steer)
        if run.terminal is not None:
            return
        run.state = state or run.state
        run.phase = run.phase if phase is None else phase
        run.started_at_ms = run.started_at_ms if started_at_ms is None else started_at_ms

    def append(self, run_id: str, event: Event, **facts: object) -> Event:
        """Number `event` as the run's next one and hold it; returns the numbered event, whose meta
        has `facts` too.

        Raises `KeyError` for a run that is not open and `ValueError` after a terminal event.
        """
        run = self._runs[run_id]
        if run.terminal is not None:
            raise ValueError(f"run {run_id} is over: no {event.type} can follow")
        meta = {**event.meta, **facts, "event_seq": run.last_seq + 1}
        numbered = Event(event.type, event.ts_ms, event.payload, meta)
        limits = self._limits
        before = run.bytes
        run.append(numbered)
        if run.bytes > limits.max_bytes or len(run.events) > limits.max_events:
            self._fit_run(run)
        self.total_bytes += run.bytes - before
        if event.type in TERMINAL_TYPES:
            self._end(run_id, run)
        if self.total_bytes > limits.total_max_bytes:
            self._fit_total()
        self._wake(run_id)
        return numbered

    def _end(self, run_id: str, run: RunJournal) -> None:
        del self._live[run_id]
        self._ended_at[run_id] = self._clock.monotonic_ms()
        self._whole[run_id] = run.bytes
        self._whole_bytes += run.bytes
        # The run that has just ended keeps its events: its subscribers are about to read them.
        while self._whole_bytes > self._limits.ended_max_bytes and len(self._whole) > 1:
            self._fold_oldest_ended()
        while len(self._ended_at) > max(1, self._limits.ended_max_runs):
            self._drop(next(iter(self._ended_at)))

    def close_run(self, run_id: str) -> None:
        """Forget a run at once, for one that was never taken; only its subscribers are told."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        self.total_bytes -= run.bytes
        for index in (self._live, self._ended_at):
            index.pop(run_id, None)
        self._whole_bytes -= self._whole.pop(run_id, 0)
        self._wake(run_id)

    # --- reading ---

    def known(self, run_id: str) -> bool:
        """True when the journal holds the run."""
        return run_id in self._runs

    def is_live(self, run_id: str) -> bool:
        """True from `open` until the terminal event."""
        return run_id in self._live

    def run_ids(self) -> tuple[str, ...]:
        """All runs held, in the order they were opened."""
        return tuple(self._runs)

    def last_seq(self, run_id: str) -> int:
        """The number of the run's newest event; 0 without any, also for unknown runs."""
        run = self._runs.get(run_id)
        return 0 if run is None else run.last_seq

    def snapshot(self, run_id: str) -> RunSnapshot | None:
        """The run as a whole, as it is now; None when it is unknown."""
        run = self._runs.get(run_id)
        return None if run is None else run.whole(self.epoch, with_end=True)

    def replay(
        self, run_id: str, after_seq: int = 0, epoch: str | None = None
    ) -> tuple[StreamItem, ...] | None:
        """What a subscriber gets at once: events, or a snapshot and events; None if unknown.

        `epoch` is the one that `after_seq` belongs to, None for this journal's own.
        """
        with self.follower() as follower:
            if not follower.add(run_id, after_seq, epoch):
                return None
            items: list[StreamItem] = []
            while batch := follower.take():
                items.extend(item for _, item in batch if item is not None)
            return tuple(items)

    @contextmanager
    def follower(self, unsent_limit: int = UNSENT_LIMIT) -> Iterator[Follower]:
        """A cursor over any number of runs; it ends with the block."""
        follower = Follower(self.epoch, self._runs, self._followers, unsent_limit)
        try:
            yield follower
        finally:
            follower.clear()

    # --- bounds ---

    def sweep(self) -> None:
        """Drop ended runs that are past retention."""
        limit = self._clock.monotonic_ms() - self._limits.retention_ms
        while self._ended_at:
            run_id, ended_at = next(iter(self._ended_at.items()))
            if ended_at > limit:
                return
            self._drop(run_id)

    async def serve(self) -> Never:
        """Keep sweeping; run it as a task of whoever owns the journal."""
        while True:
            await self._clock.sleep(min(_SWEEP_PAUSE_MS, self._limits.retention_ms))
            self.sweep()

    def _fit_run(self, run: RunJournal) -> None:
        limits = self._limits
        while run.foldable and (
            len(run.events) > limits.max_events or run.bytes > limits.max_bytes
        ):
            # A whole share at a time: folding is then paid once in many events.
            run.fold_oldest(max(1, run.foldable // 8))
        if run.bytes > limits.max_bytes:
            run.drop_details(run.bytes - limits.max_bytes)

    def _fit_total(self) -> None:
        limit = self._limits.total_max_bytes
        while self.total_bytes > limit and self._whole:
            self._fold_oldest_ended()
        while self.total_bytes > limit and self._ended_at:
            self._drop(next(iter(self._ended_at)))
        if self.total_bytes > limit:
            self._fit_live(limit)

    def _fit_live(self, limit: int) -> None:
        live = [self._runs[run_id] for run_id in self._live]
        for run in live:
            if self.total_bytes <= limit:
                return
            self._fold_all(run)
        for run in live:
            if self.total_bytes <= limit:
                return
            before = run.bytes
            run.drop_details(self.total_bytes - limit)
            self.total_bytes += run.bytes - before

    def _fold_oldest_ended(self) -> None:
        run_id = next(iter(self._whole))
        self._whole_bytes -= self._whole.pop(run_id)
        self._fold_all(self._runs[run_id])

    def _fold_all(self, run: RunJournal) -> None:
        before = run.bytes
        run.fold_oldest(run.foldable)
        self.total_bytes += run.bytes - before

    def _drop(self, run_id: str) -> None:
        self.close_run(run_id)
        if self._on_drop is not None:
            self._on_drop(run_id)

    def _wake(self, run_id: str) -> None:
        for follower in self._followers.get(run_id, ()):
            follower.wake(run_id)


async def stream(
    journal: Journal, run_id: str, after_seq: int = 0, past: Past | None = None
) -> AsyncGenerator[StreamItem, None]:
    """The events of one run after `after_seq` until it is over, as `EngineRuntime.subscribe`.

    Raises `RunNotFound` for a run that neither the journal nor `past` knows, and `StreamLost` when
    the journal drops the run under a subscriber that is far behind.
    """
    with journal.follower() as follower:
        if not follower.add(run_id, after_seq):
            items = await past(run_id) if past is not None else ()
            if not items:
                raise RunNotFound(run_id)
            for item in items:
                yield item
            return
        while follower.active:
            await follower.wait()
            for _, taken in follower.take():
                if taken is None:
                    raise StreamLost(run_id, "its events are not kept any more")
                if isinstance(taken, Event) and event_seq(taken) <= after_seq:
                    continue
                yield taken
