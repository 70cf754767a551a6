"""The state of one conversation, and what its coordinator may be asked to do about it.

`queue.py` says how one leads to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_core.bridges import SteerMode
from lemon_core.runs import QueueMode
from lemon_router.requests import Submission

FALLBACK: Final[Mapping[str, QueueMode]] = {
    "steer": "followup",
    "steer_backlog": "collect",
    "redirect": "followup",
}
"""How a message is queued that was not taken by the active run."""
INTERRUPTED: Final = "interrupted"
QUEUE_FULL: Final = "queue_full"

DropRule = Literal["oldest", "newest", "reject"]


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How follow-ups join, and how many messages may wait (`cap` None: any number).

    Past the cap `oldest` drops the message that waits longest, `newest` the arriving one, and
    `reject` refuses the arriving one. Active runs and steers under way do not count and are never
    dropped; an interrupting message does not wait in line and is not counted either.
    """

    debounce_ms: int = 500
    cap: int | None = None
    drop: DropRule = "reject"


DEFAULT_RULES: Final = QueueRules()


@dataclass(frozen=True, slots=True)
class PendingSteer:
    """A message offered to the active run, and how it is queued if that does not take it."""

    active_run_id: str
    submission: Submission
    mode: SteerMode
    fallback: QueueMode


@dataclass(frozen=True, slots=True)
class QueueState:
    """The run that is going on, those that wait for it, first in front, and those offered to it.

    While `held` the head may not start: there is no room for it now.
    """

    active: Submission | None = None
    waiting: tuple[Submission, ...] = ()
    steers: tuple[PendingSteer, ...] = ()
    last_followup_at_ms: int | None = None
    held: bool = False

    @property
    def idle(self) -> bool:
        """True when the conversation has nothing to do."""
        return self.active is None and not self.waiting


@dataclass(frozen=True, slots=True)
class Start:
    """Begin this run now."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class CancelActive:
    """Ask the running one to end."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DispatchSteer:
    """Offer this message to the active run."""

    active_run_id: str
    mode: SteerMode
    submission: Submission


@dataclass(frozen=True, slots=True)
class Dropped:
    """These will never start; each needs its synthetic end."""

    submissions: tuple[Submission, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Absorbed:
    """This one has become part of the run `by`; whoever waits for it goes on with that."""

    submission: Submission
    by: str
    mode: QueueMode


@dataclass(frozen=True, slots=True)
class Refused:
    """The arriving message is not taken; nothing else has changed."""

    submission: Submission
    reason: str


@dataclass(frozen=True, slots=True)
class Requeued:
    """This one was not taken by the active run and waits in line now."""

    submission: Submission
    asked: SteerMode


Effect = Start | CancelActive | DispatchSteer | Dropped | Absorbed | Refused | Requeued


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one event: the next state, and what has to be done about it."""

    state: QueueState
    effects: tuple[Effect, ...] = field(default=())
