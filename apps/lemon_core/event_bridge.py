"""Asking an outside fan-out of events to follow a run, or to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from lemon_core.capabilities import Capabilities
from lemon_core.logs import get_logger

log = get_logger("lemon_core.event_bridge")

EVENT_BRIDGE: Final = "event_bridge"


class RunFollower(Protocol):
    """What is registered under `EVENT_BRIDGE`."""

    def subscribe_run(self, run_id: str) -> None:
        """Pass the run's events on from now."""

    def unsubscribe_run(self, run_id: str) -> None:
        """The run is over, or nobody outside cares any more."""


@dataclass(frozen=True, slots=True)
class EventBridge:
    """The fan-out as the router sees it: does nothing when there is none, and never raises."""

    capabilities: Capabilities

    def subscribe_run(self, run_id: str) -> None:
        """Have the run's events passed on."""
        self._tell(lambda follower: follower.subscribe_run(run_id), run_id)

    def unsubscribe_run(self, run_id: str) -> None:
        """Have the run let go."""
        self._tell(lambda follower: follower.unsubscribe_run(run_id), run_id)

    def _tell(self, call: Callable[[RunFollower], None], run_id: str) -> None:
        # The registry is untyped; only a fan-out registers under this key.
        follower = cast("RunFollower | None", self.capabilities.get(EVENT_BRIDGE))
        if follower is None:
            return
        try:
            call(follower)
        except Exception:  # a run must not suffer from whoever watches it
            log.exception("event_bridge.failed", run_id=run_id)
