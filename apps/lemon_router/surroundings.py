"""What the runs of one router stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from anyio.abc import TaskGroup

from lemon_core.bridges import EngineRuntime
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.events import RunCompleted
from lemon_core.journal import Journal
from lemon_router.admission import AdmissionStore
from lemon_router.ownership import EverySession, Ownership
from lemon_router.queue_state import QueueRules
from lemon_router.requests import Submission
from lemon_router.run_process import Records

Emit = Callable[[str, Mapping[str, object]], None]


class Followers(Protocol):
    """Outside fan-outs of a run's events (core's `EventBridge`)."""

    def subscribe_run(self, run_id: str) -> None:
        """Pass the run's events on from now."""

    def unsubscribe_run(self, run_id: str) -> None:
        """The run is over."""


class NoFollowers:
    """Nobody outside cares."""

    def subscribe_run(self, run_id: str) -> None:
        """See `Followers`."""

    def unsubscribe_run(self, run_id: str) -> None:
        """See `Followers`."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the runs of one router stand on; `tasks` owns their processes.

    `late_resume` binds a queued submission to what its session has learned since. `after_end` hears
    of each end before the next run of the conversation starts, `forget_run` when all is stored.
    `alive` tells whether another router of a shared store lives (None: there is no other).
    `emit` counts (name and facts).
    """

    engine: EngineRuntime
    records: Records
    admissions: AdmissionStore
    journal: Journal
    bus: Bus
    clock: Clock
    tasks: TaskGroup
    late_resume: Callable[[Submission], Awaitable[Submission]]
    after_end: Callable[[Submission, RunCompleted, bool], Awaitable[None]]
    alive: Callable[[str], Awaitable[bool]] | None = None
    forget_run: Callable[[str], None] = field(default=lambda run_id: None)
    followers: Followers = field(default_factory=NoFollowers)
    ownership: Ownership = field(default_factory=EverySession)
    rules: QueueRules = field(default_factory=QueueRules)
    run_process_limit: int | None = None
    steer_ack_timeout_ms: int = 5_000
    idle_timeout_ms: int = 0
    emit: Emit = field(default=lambda name, facts: None)
