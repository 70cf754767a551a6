"""What the coordinator and the rest of the router say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lemon_core.bridges import SteerMode
from lemon_core.events import RunCompleted
from lemon_core.resume import ConversationKey
from lemon_router.relay import RunRelay
from lemon_router.requests import Disposition, Submission


class StartRefused(Exception):
    """No room for one more run now; the same start may be tried again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StartFailed(StartRefused):
    """This run can never start."""


class Process(Protocol):
    """The part of a run process that the coordinator needs."""

    def abort(self, reason: str) -> None:
        """Ask the run to end."""


class Hooks(Protocol):
    """What the coordinator asks of its router; all but `own` and `start` only tell."""

    def own(self, session_key: str) -> bool:
        """True when this router may run the session; if not, `release_held` is called when so."""

    def start(self, submission: Submission, relay: RunRelay) -> Process:
        """Begin a run process; raises `StartRefused` or `StartFailed`."""

    def steer(self, active_run_id: str, mode: SteerMode, submission: Submission) -> None:
        """Offer a message to the active run; the answer comes by `steer_answered`."""

    def dropped(self, submission: Submission, completed: RunCompleted) -> None:
        """A run will never start; its synthetic end was published."""

    def absorbed(self, submission: Submission, by: str, mode: str) -> None:
        """A run became part of another; that was published."""

    def requeued(self, submission: Submission) -> None:
        """An offered message was not taken and waits in line now."""

    def held(self, conversation: ConversationKey) -> None:
        """A head found no room: `start_again` is to be called after a while."""


@dataclass(frozen=True, slots=True)
class Work:
    """A run that has not ended: waiting, offered to another run, or driven by its process."""

    submission: Submission
    relay: RunRelay
    conversation: ConversationKey
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of an arriving message; `reason` when it was refused."""

    disposition: Disposition | None
    position: int = 0
    active_run_id: str | None = None
    merged: tuple[str, ...] = ()
    reason: str | None = None
