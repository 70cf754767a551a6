"""Offers a queued message to the run that is active, and hears whether that took it.

The gateway applies one message once, however often it is offered. Without an answer the message is
offered once more; then it stays pending until the run ends, whose snapshot tells what it took.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import anyio

from lemon_core.bridges import (
    EngineRuntime,
    ExecutionRejected,
    RunNotFound,
    SteerMode,
    SteerOutcome,
)
from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.util import capped_backoff
from lemon_router.requests import Submission

log = get_logger("lemon_router.steering")

TRIES: Final = 2
RETRY_BASE_MS: Final = 100
RETRY_MAX_MS: Final = 2_000


class Steering:
    """Asks the gateway; `told(mode, result)` counts what came of it."""

    def __init__(
        self,
        engine: EngineRuntime,
        clock: Clock,
        *,
        ack_timeout_ms: int,
        told: Callable[[str, str], None],
    ) -> None:
        self._engine, self._clock = engine, clock
        self._ack_timeout_ms, self._told = ack_timeout_ms, told

    async def offer(self, run_id: str, mode: SteerMode, submission: Submission) -> bool | None:
        """True when the run took the message, False when not, None when nobody can tell yet."""
        for _ in range(TRIES):
            outcome = await self._ask(run_id, mode, submission)
            if outcome is not None:
                self._told(mode, "accepted" if outcome.accepted else outcome.reason or "refused")
                return outcome.accepted
        self._told(mode, "unanswered")
        return None

    async def _ask(
        self, run_id: str, mode: SteerMode, submission: Submission
    ) -> SteerOutcome | None:
        answer: SteerOutcome | None = None
        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                await self._clock.sleep(self._ack_timeout_ms)
                tasks.cancel_scope.cancel()

            tasks.start_soon(give_up)
            answer = await self._answer(run_id, mode, submission)
            tasks.cancel_scope.cancel()
        return answer

    async def _answer(
        self, run_id: str, mode: SteerMode, submission: Submission
    ) -> SteerOutcome | None:
        steer = partial(self._engine.steer, run_id, submission.run_id)
        try:
            return await steer(submission.command.prompt, mode)
        except (RunNotFound, ExecutionRejected) as exc:
            return SteerOutcome(submission.run_id, mode, False, exc.code)
        except Exception as exc:  # it may have arrived all the same: not a refusal
            log.warning("steer.unanswered", run_id=run_id, error=str(exc))
            return None

    async def taken_by(self, run_id: str) -> tuple[str, ...]:
        """The messages that a run, now over, has taken; waits until the gateway can tell."""
        for attempt in count():
            try:
                snapshot = await self._engine.get_run(run_id)
                return () if snapshot is None else snapshot.applied_steers
            except Exception as exc:  # away for now
                log.info("steer.unknown", run_id=run_id, error=str(exc))
            await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
        raise AssertionError("count() is endless")
