"""Waiting for the end of a run that a webhook caused, and what its sender is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.abc

from lemon_core.bridges import RouterBridge
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.events import Completion
from lemon_core.logs import get_logger
from lemon_core.store import StoreError
from lemon_core.store.run_record import RunRecord
from lemon_gateway.webhook.callbacks import CallbackSender
from lemon_gateway.webhook.payload import WebhookMessage
from lemon_gateway.webhook.settings import Integration

READY_MS: Final = 1_000
MAX_WAITING: Final = 1_000
"""How many runs are waited for at a time for the sake of a callback."""

# How a run is over that has left no summary.
_ENDED: Final = frozenset({"completed", "failed", "aborted"})

log = get_logger("lemon_gateway.webhook")


class Runs(Protocol):
    """The finished runs (core's `RunStore`)."""

    async def get(self, run_id: str) -> RunRecord | None:
        """The record of a run; raises `StoreError`."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How runs ended: those that end from now on, and those that did before."""

    bus: Bus
    runs: Runs
    router: RouterBridge

    async def earlier(self, run_id: str) -> Completion | None:
        """How a run that was submitted before has ended; None when it has not, or nobody knows."""
        try:
            record = await self.runs.get(run_id)
        except StoreError:
            return None
        completed = None if record is None else (record.summary or {}).get("completed")
        if isinstance(completed, Mapping):
            return Completion.model_validate(completed)
        if await self.router.admission(run_id) in _ENDED:
            return Completion(ok=False, error="run_lost", run_id=run_id)
        return None


@dataclass(frozen=True, slots=True)
class CallbackJob:
    """One callback to come."""

    integration: Integration
    message: WebhookMessage
    run_id: str
    url: str

    def body(self, completed: Completion, duration_ms: int) -> dict[str, object]:
        """What is posted."""
        return {
            "integration_id": self.integration.id,
            "run_id": self.run_id,
            "session_key": self.integration.session_key,
            "completed": told(completed),
            "duration_ms": duration_ms,
            "metadata": dict(self.message.metadata),
            "attachments": [attachment.as_dict() for attachment in self.message.attachments],
        }


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiter that is ready; `scope` ends it."""

    job: CallbackJob
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class CallbackWaiters:
    """The callbacks that are to come, each a task that waits for its run."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, ends: Ends, sender: CallbackSender, clock: Clock
    ) -> None:
        self._tasks, self._ends, self._sender, self._clock = tasks, ends, sender, clock
        self._waiting = 0

    async def start(self, job: CallbackJob) -> Waiting | None:
        """Wait for the run of `job`, which may be submitted once this returns.

        None, when as many are waited for as may be or the waiter is not ready within a second: then
        nothing waits.
        """
        if self._waiting >= MAX_WAITING:
            return None
        waiting = Waiting(job)
        with anyio.move_on_after(READY_MS / 1000):
            await self._tasks.start(self._wait, waiting)
            return waiting
        waiting.scope.cancel()
        return None

    async def settle(self, waiting: Waiting, *, may_run: bool, duplicate: bool) -> None:
        """Go on waiting for a run that may be coming, and for no other.

        A run that was submitted before may be over, and then its callback is sent now.
        """
        if not may_run:
            waiting.scope.cancel()
        elif duplicate:
            completed = await self._ends.earlier(waiting.job.run_id)
            if completed is not None:
                waiting.scope.cancel()
                self._tasks.start_soon(self._send, waiting.job, completed, 0)

    async def _wait(self, waiting: Waiting, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        job = waiting.job
        self._waiting += 1
        try:
            with waiting.scope, self._ends.bus.watch_run(job.run_id) as waiter:
                task_status.started()
                began_ms = self._clock.monotonic_ms()
                completed = await waiter.completion(job.integration.callbacks.wait_timeout_ms)
                if isinstance(completed, str):
                    log.warning("webhook.callback_not_sent", run_id=job.run_id, reason=completed)
                    return
                await self._send(job, completed, self._clock.monotonic_ms() - began_ms)
        finally:
            self._waiting -= 1

    async def _send(self, job: CallbackJob, completed: Completion, duration_ms: int) -> None:
        body = job.body(completed, duration_ms)
        outcome = await self._sender.send_until_taken(job.url, job.integration.callbacks, body)
        log.info(
            "webhook.callback",
            run_id=job.run_id,
            integration=job.integration.id,
            **outcome.as_dict(),
        )


def told(completed: Completion) -> dict[str, object]:
    """How a run ended, for somebody outside: not how its session could be gone on with."""
    return completed.model_dump(mode="json", exclude={"resume", "meta"}, exclude_none=True)
