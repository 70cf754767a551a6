"""What follows the end of a run, before the next one of its conversation starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from lemon_core.clock import Clock
from lemon_core.config.model import LemonConfig
from lemon_core.errors import error_text
from lemon_core.events import RunCompleted
from lemon_core.logs import get_logger
from lemon_core.store import StoreError
from lemon_router.compaction import PendingCompactions, Windows, marker_of
from lemon_router.requests import Submission
from lemon_router.retry import retry_of

log = get_logger("lemon_router.endings")

REASON_MAX_CHARS = 80


class Recorder(Protocol):
    """Keeps what happened (core's `Introspection.record`)."""

    def __call__(
        self,
        event_type: str,
        payload: dict[str, object],
        *,
        run_id: str | None,
        session_key: str | None,
        agent_id: str | None,
    ) -> object:
        """Record one thing; never waits."""


class Questions(Protocol):
    """The open approvals (core's `ExecApprovals`)."""

    async def settle_run(self, run_id: str, reason: str) -> int:
        """End the questions of a run that is over; raises `StoreError`."""


@dataclass(frozen=True, slots=True)
class Endings:
    """Marks conversations that no longer fit, tries silent failures once more, tidies up.

    `try_again` None: nobody would be there for the answer of a second run.
    """

    config: LemonConfig
    clock: Clock
    compactions: PendingCompactions
    windows: Windows
    questions: Questions
    record: Recorder
    try_again: Callable[[Submission], Awaitable[None]] | None

    async def after_end(
        self, submission: Submission, completed: RunCompleted, streamed_text: bool
    ) -> None:
        """The run of `submission` is over, and everybody was told."""
        end = completed.completed
        self._note(submission, completed)
        if (end.meta or {}).get("synthetic"):
            await self._settle_questions(submission.run_id, error_text(end.error))
        if submission.origin == "channel":
            marker = marker_of(
                submission, completed, self.config, self.windows, self.clock.now_ms()
            )
            if marker is not None:
                await self.compactions.put(marker)
        if self.try_again is None or streamed_text:
            return
        again = retry_of(submission, end)
        if again is not None:
            await self.try_again(again)

    def _note(self, submission: Submission, completed: RunCompleted) -> None:
        end = completed.completed
        facts: dict[str, object] = {"ok": end.ok, "duration_ms": completed.duration_ms}
        if not end.ok:
            facts["reason"] = error_text(end.error)[:REASON_MAX_CHARS]
        agent = submission.meta.get("agent_id")
        self.record(
            "run_completed" if end.ok else "run_failed",
            facts,
            run_id=submission.run_id,
            session_key=submission.session_key,
            agent_id=agent if isinstance(agent, str) else None,
        )

    async def _settle_questions(self, run_id: str, reason: str) -> None:
        """Nobody waits for the answers any more, and no person should be asked."""
        try:
            await self.questions.settle_run(run_id, reason)
        except StoreError as exc:
            log.warning("approvals.not_settled", run_id=run_id, error=str(exc))
