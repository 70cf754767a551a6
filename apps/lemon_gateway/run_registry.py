"""Which runs this gateway knows.

A run is *live* from its acceptance to its end. Then its entry stays as long as its journal, so
that a second submission, a late steer or a peer's question is answered from memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from lemon_core.bridges import RunIdConflict, SteerOutcome
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.run import Run
from lemon_gateway.run_parts import OnComplete


@dataclass(eq=False, slots=True)
class RunEntry:
    """One run. `request` and `run` go when it ends; what answers later questions stays.

    `owner` is the peer that submitted it, None for callers in the process.
    """

    digest: bytes
    owner: str | None
    request: ExecutionRequest | None
    on_complete: OnComplete | None
    run: Run | None = None
    cancel_reason: str | None = None
    steers: dict[str, SteerOutcome] = field(default_factory=dict)


class RunRegistry:
    """Entries by run id."""

    def __init__(self) -> None:
        self.live: dict[str, RunEntry] = {}
        self._entries: dict[str, RunEntry] = {}
        self._admitting: dict[str, anyio.Event] = {}
        self._idle = anyio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, run_id: str) -> RunEntry | None:
        """The entry of a run, live or ended."""
        return self._entries.get(run_id)

    @asynccontextmanager
    async def admission(self, run_id: str) -> AsyncIterator[None]:
        """The right to decide about `run_id`: one caller after the other."""
        while (under_way := self._admitting.get(run_id)) is not None:
            await under_way.wait()
        decided = self._admitting[run_id] = anyio.Event()
        try:
            yield
        finally:
            del self._admitting[run_id]
            decided.set()

    def enter(self, run_id: str, entry: RunEntry) -> None:
        """The run has been accepted."""
        self._entries[run_id] = self.live[run_id] = entry

    def leave(self, run_id: str) -> None:
        """The run has ended."""
        entry = self.live.pop(run_id)
        entry.request = entry.run = entry.on_complete = None
        if not self.live:
            idle, self._idle = self._idle, anyio.Event()
            idle.set()

    def forget(self, run_id: str) -> None:
        """Nobody can ask for the run any more."""
        self._entries.pop(run_id, None)

    async def wait_idle(self) -> None:
        """Return when no run is live."""
        while self.live:
            await self._idle.wait()


def require_same(run_id: str, known: bytes | None, digest: bytes) -> None:
    """Raise `RunIdConflict` when `run_id` is known for another command."""
    if known is not None and known != digest:
        raise RunIdConflict(run_id)
