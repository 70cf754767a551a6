"""What the router shows of its sessions and runs: answers of RouterService, whatever the form."""

from __future__ import annotations

from dataclasses import dataclass

from lemon_core.errors import LemonError
from lemon_core.events import Completion


class SessionNotFound(LemonError):
    """Nobody here knows the session."""

    code = "session_not_found"

    def __init__(self, session_key: str) -> None:
        super().__init__(f"no session {session_key} is known here")
        self.session_key = session_key


class SessionBusy(LemonError):
    """Something of the session did not end in time; nothing was changed."""

    code = "session_busy"

    def __init__(self, session_key: str) -> None:
        super().__init__(f"session {session_key} has a run that does not end: try again")
        self.session_key = session_key


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as the router knows it; `completion` is set when it is over.

    `state` is the admission state: accepted, queued, started, submitted, completed, failed, aborted
    or absorbed (then `absorbed_by` names the run that goes on with its input).
    """

    run_id: str
    session_key: str
    state: str
    agent_id: str
    origin: str
    created_at_ms: int
    updated_at_ms: int
    phase: str | None = None
    prompt: str | None = None
    model: str | None = None
    node_id: str | None = None
    absorbed_by: str | None = None
    completion: Completion | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A stored or active session; `run_count` counts finished runs."""

    session_key: str
    agent_id: str
    origin: str | None = None
    active_run_id: str | None = None
    queued_count: int = 0
    run_count: int = 0
    created_at_ms: int | None = None
    updated_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session with its sticky settings and its recent runs, newest first."""

    info: SessionInfo
    model: str | None = None
    thinking_level: str | None = None
    runs: tuple[RunInfo, ...] = ()
