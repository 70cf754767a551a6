"""One run as its gateway shows it: whether it is known there, and when it is not heard of again."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from lemon_core.bridges import EngineRuntime, RunNotFound, StreamLost
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger

log = get_logger("lemon_router.run_process")

BIND_GRACE_MS: Final = (200, 1_500)
CHECK_INTERVAL_MS: Final = 15_000
NODE_LOST: Final = "node_lost"


class RunAtGateway:
    """Asks the gateway about one run."""

    def __init__(self, run_id: str, engine: EngineRuntime, clock: Clock) -> None:
        self.run_id = run_id
        self._engine, self._clock = engine, clock

    async def restarted(self, epoch: str) -> bool:
        return (await self._engine.health()).stream_epoch != epoch

    async def shares_bus(self) -> bool:
        try:
            return await self._engine.shares_bus()
        except (LemonError, OSError):
            return False

    async def checked_for(self) -> str:
        """Returns when a gateway on this bus no longer works on the run.

        Its events are here by themselves, the end included: a stream of them would double the cost
        of a run. This is for the case that should not be, so it is looked for seldom.
        """
        while True:
            await self._clock.sleep(CHECK_INTERVAL_MS)
            try:
                snapshot = await self._engine.get_run(self.run_id)
            except (LemonError, OSError):
                continue
            if snapshot is None or snapshot.terminal is not None:
                return "not_found" if snapshot is None else "ended_unseen"

    async def unbound(self) -> bool:
        """True when the gateway does not know a run that it said it had started."""
        for grace_ms in BIND_GRACE_MS:
            await self._clock.sleep(grace_ms)
            if await self._knows():
                return False
        return True

    async def _knows(self) -> bool:
        try:
            return await self._engine.get_run(self.run_id) is not None
        except (LemonError, OSError):
            return True

    async def streamed(self, after_seq: int) -> str:
        """Returns when the gateway's own stream of the run is over, with the reason."""
        try:
            async with aclosing(self._engine.subscribe(self.run_id, after_seq)) as stream:
                async for _ in stream:
                    pass
        except StreamLost as exc:
            return NODE_LOST if exc.reason == NODE_LOST else exc.code
        except RunNotFound as exc:
            return exc.code
        except (LemonError, OSError) as exc:
            log.info("run.stream_failed", run_id=self.run_id, error=str(exc))
            return "stream_failed"
        return "stream_ended"

    async def lives(self) -> bool:
        """False when the gateway does not have the run, or cannot be asked."""
        try:
            return await self._engine.get_run(self.run_id) is not None
        except (LemonError, OSError):
            return False

    async def cancel(self, reason: str) -> None:
        try:
            await self._engine.cancel_by_run_id(self.run_id, reason)
        except Exception:  # an abort goes on, whatever becomes of the message about it
            log.exception("run.cancel_failed", run_id=self.run_id)
