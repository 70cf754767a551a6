"""How the conversations at work are: what a doctor asks while they go on.

A conversation is unhealthy when its agent has ended while its run has not, degraded when more than
a fifth of its tool calls fail, else healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from coding_agent.live_runs import LiveRun, LiveRuns

HealthStatus = Literal["unhealthy", "degraded", "healthy"]
Summary = Literal["no_sessions", "unhealthy", "degraded", "healthy"]
ORDER: Final[tuple[HealthStatus, ...]] = ("unhealthy", "degraded", "healthy")
MAX_ERROR_RATE: Final = 0.2


@dataclass(frozen=True, slots=True)
class SessionHealth:
    """One conversation."""

    session_id: str
    run_id: str
    status: HealthStatus
    tool_calls: int
    tool_errors: int


class SessionsHealth:
    """The `doctor_runtime` of this app: it answers at once, whatever the conversations do."""

    def __init__(self, live: LiveRuns) -> None:
        self._live = live

    def health_check(self, session_id: str) -> SessionHealth | None:
        """How a conversation is; None when it is not at work."""
        found = (run for run in self._live.all() if run.session_id == session_id)
        run = next(found, None)
        return None if run is None else health_of(run)

    def health_all(self) -> list[SessionHealth]:
        """All that are at work, the worst first."""
        found = map(health_of, self._live.all())
        return sorted(found, key=lambda each: ORDER.index(each.status))

    def health_summary(self) -> Summary:
        """The worst of all."""
        found = self.health_all()
        return found[0].status if found else "no_sessions"

    def status(self) -> Mapping[str, object]:
        """What may be shown of it: counts alone."""
        found = self.health_all()
        told: dict[str, object] = {"status": self.health_summary(), "sessions": len(found)}
        return told | {word: sum(each.status == word for each in found) for word in ORDER}


def health_of(run: LiveRun) -> SessionHealth:
    """How the conversation of a run is."""
    calls, errors = run.tools()
    status: HealthStatus = "degraded" if errors > MAX_ERROR_RATE * calls else "healthy"
    if not run.is_alive():
        status = "unhealthy"
    return SessionHealth(run.session_id, run.run_id, status, calls, errors)
