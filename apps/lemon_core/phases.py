"""The phases of a run, which may follow which, and how a finished run is judged."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from lemon_core.errors import LemonError, error_text


class RunPhase(StrEnum):
    """Where a run is between admission and its end."""

    ACCEPTED = "accepted"
    QUEUED_IN_SESSION = "queued_in_session"
    WAITING_FOR_SLOT = "waiting_for_slot"
    DISPATCHED_TO_GATEWAY = "dispatched_to_gateway"
    STARTING_ENGINE = "starting_engine"
    STREAMING = "streaming"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


_P = RunPhase
NEXT: Mapping[RunPhase, frozenset[RunPhase]] = {
    _P.ACCEPTED: frozenset({_P.QUEUED_IN_SESSION, _P.WAITING_FOR_SLOT, _P.ABORTED}),
    _P.QUEUED_IN_SESSION: frozenset({_P.WAITING_FOR_SLOT, _P.ABORTED}),
    _P.WAITING_FOR_SLOT: frozenset({_P.DISPATCHED_TO_GATEWAY, _P.ABORTED, _P.FAILED}),
    _P.DISPATCHED_TO_GATEWAY: frozenset({_P.STARTING_ENGINE, _P.FAILED, _P.ABORTED}),
    _P.STARTING_ENGINE: frozenset({_P.STREAMING, _P.FINALIZING, _P.FAILED, _P.ABORTED}),
    _P.STREAMING: frozenset({_P.FINALIZING, _P.FAILED, _P.ABORTED}),
    _P.FINALIZING: frozenset({_P.COMPLETED, _P.FAILED}),
    _P.COMPLETED: frozenset(),
    _P.FAILED: frozenset(),
    _P.ABORTED: frozenset(),
}


class InvalidTransition(LemonError):
    """A phase that may not follow the other."""

    code = "invalid_transition"

    def __init__(self, current: RunPhase, target: RunPhase) -> None:
        super().__init__(f"a run cannot go from {current} to {target}")
        self.current, self.target = current, target


class RunPhaseGraph:
    """The legal moves; `NEXT` is the table."""

    @staticmethod
    def allowed(current: RunPhase, target: RunPhase) -> bool:
        """True when `target` may follow `current`."""
        return target in NEXT[current]

    @staticmethod
    def transition(current: RunPhase, target: RunPhase) -> RunPhase:
        """`target`; raises `InvalidTransition` when it may not follow."""
        if target not in NEXT[current]:
            raise InvalidTransition(current, target)
        return target

    @staticmethod
    def terminal(phase: RunPhase) -> bool:
        """True for a phase without a successor."""
        return not NEXT[phase]


class RunOutcome(StrEnum):
    """How a finished run is judged."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILURE = "failure"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


_ABORT_WORDS = (
    "abort",
    "user_requested",
    "interrupted",
    "new_session",
    "cancelled",
    "watchdog",
    "idle_timeout",
    "keepalive_cancelled",
)


def infer_outcome(summary: object) -> RunOutcome:
    """The outcome of a run summary, nested (`completed.ok`) or flat; else `unknown`."""
    if not isinstance(summary, Mapping):
        return RunOutcome.UNKNOWN
    explicit = summary.get("outcome")
    if isinstance(explicit, str) and explicit in RunOutcome.__members__.values():
        return RunOutcome(explicit)
    nested = summary.get("completed")
    facts: Mapping[object, object] = nested if isinstance(nested, Mapping) else summary
    if facts.get("ok") is True:
        answer = facts.get("answer")
        answered = isinstance(answer, str) and bool(answer.strip())
        return RunOutcome.SUCCESS if answered else RunOutcome.PARTIAL
    if facts.get("ok") is False:
        text = error_text(facts.get("error")).casefold()
        aborted = any(word in text for word in _ABORT_WORDS)
        return RunOutcome.ABORTED if aborted else RunOutcome.FAILURE
    return RunOutcome.UNKNOWN
