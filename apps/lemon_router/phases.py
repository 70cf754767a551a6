"""The phase of a run as the router sees it; nobody else publishes `run_phase_changed`."""

from __future__ import annotations

from collections.abc import Callable

from lemon_core.events import RunPhaseChanged
from lemon_core.logs import get_logger
from lemon_core.phases import RunPhase, RunPhaseGraph

log = get_logger("lemon_router.phases")

ABORT_REASONS = frozenset({"user_requested", "interrupted", "new_session", "aborted"})


class PhaseTracker:
    """Walks one run through its phases and hands each legal step to `publish`.

    Repeated steps are silent, illegal ones are logged and skipped.
    """

    def __init__(
        self,
        run_id: str,
        session_key: str,
        conversation_key: str,
        *,
        publish: Callable[[RunPhaseChanged], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.phase = RunPhase.ACCEPTED
        self._run_id = run_id
        self._session_key = session_key
        self._conversation_key = conversation_key
        self._publish = publish
        self._now_ms = now_ms

    @property
    def queued(self) -> bool:
        """True while the run waits for another of its session."""
        return self.phase is RunPhase.QUEUED_IN_SESSION

    def step(self, phase: RunPhase, source: str) -> None:
        """Move to `phase` because of `source`."""
        if phase is self.phase:
            return
        if not RunPhaseGraph.allowed(self.phase, phase):
            log.warning("run_phase.illegal", run_id=self._run_id, current=self.phase, target=phase)
            return
        previous, self.phase = self.phase, phase
        self._publish(
            RunPhaseChanged(
                run_id=self._run_id,
                session_key=self._session_key,
                conversation_key=self._conversation_key,
                phase=phase,
                previous_phase=previous,
                source=source,
                at=self._now_ms(),
            )
        )

    def step_from(self, current: RunPhase, phase: RunPhase) -> None:
        """Move to `phase` if the run stands at `current`; otherwise it is further already."""
        if self.phase is current:
            self.step(phase, "submit")

    def end(self, *, ok: bool, error: object) -> None:
        """Move to the terminal phase that fits a completion."""
        if ok:
            # A completion without engine_completed still passes through finalizing.
            if RunPhaseGraph.allowed(self.phase, RunPhase.FINALIZING):
                self.step(RunPhase.FINALIZING, "run_completed")
            self.step(RunPhase.COMPLETED, "run_completed")
        elif (
            isinstance(error, str)
            and error in ABORT_REASONS
            and RunPhaseGraph.allowed(self.phase, RunPhase.ABORTED)
        ):
            self.step(RunPhase.ABORTED, "run_completed")
        else:
            self.step(RunPhase.FAILED, "run_completed")
