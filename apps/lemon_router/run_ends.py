"""How runs end that the gateway does not tell of, and what is known of those that it told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_core.events import Completion, ErrorValue, RunCompleted
from lemon_core.store import RunRecord
from lemon_router.requests import Submission

RUN_LOST: Final = "run_lost"
GATEWAY_RUN_DOWN: Final = "gateway_run_down"
TERMINATED: Final = "run_process_terminated"


def synthetic_end(submission: Submission, error: ErrorValue) -> RunCompleted:
    """The end of a run that the gateway does not tell of."""
    completed = Completion(
        ok=False,
        answer="",
        error=error,
        run_id=submission.run_id,
        session_key=submission.session_key,
        meta={"synthetic": True},
    )
    return RunCompleted(completed=completed)


def is_loss(error: object) -> bool:
    """True for the end of a run of which nobody knows how far it came."""
    code = error.get("code") if isinstance(error, Mapping) else error
    return code in {RUN_LOST, GATEWAY_RUN_DOWN}


def completed_of(record: RunRecord) -> RunCompleted:
    """The end that the store has of a run."""
    summary = record.summary or {}
    completed = Completion.model_validate(summary.get("completed"), extra="ignore")
    duration = summary.get("duration_ms")
    return RunCompleted(
        completed=completed, duration_ms=duration if isinstance(duration, int) else None
    )
