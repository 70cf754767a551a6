"""The open questions of runs, wherever they run, and the way back to whoever asks.

Questions of this node are in its store, and with a shared store those of other nodes as well. Of a
gateway with a store of its own only the stream of the run tells, whose events are on the bus here.
Whoever asks waits on the bus of its own node, so an answer goes there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from lemon_core.approvals import TOPIC
from lemon_core.bridges import EngineRuntime
from lemon_core.bus import Bus
from lemon_core.errors import LemonError
from lemon_core.events import ApprovalRequested, ApprovalResolved, Event, PendingApproval

MAX_HEARD: Final = 1_000


class StoredQuestions(Protocol):
    """Core's approvals, as far as they are needed here."""

    async def pending_approvals(self) -> list[PendingApproval]:
        """The open questions in the store."""

    async def load_pending(self, approval_id: str) -> PendingApproval | None:
        """One of them."""

    async def resolve(self, approval_id: str, decision: str) -> bool:
        """Answer a question of this node."""


class Questions:
    """What runs ask; `engine` is what executes them, `ended` says whether a run is over."""

    def __init__(
        self,
        stored: StoredQuestions,
        *,
        engine: EngineRuntime,
        ended: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._stored, self._engine, self._ended = stored, engine, ended
        self._heard: dict[str, PendingApproval] = {}

    @contextmanager
    def listening(self, bus: Bus) -> Iterator[None]:
        """Hear of questions on `bus` for the block."""
        with bus.listening((TOPIC,), self._hear):
            yield

    async def pending(self) -> list[PendingApproval]:
        """The open questions, oldest first. Raises `StoreError`."""
        found = {question.id: question for question in await self._stored.pending_approvals()}
        for question in tuple(self._heard.values()):
            if question.run_id is not None and await self._ended(question.run_id):
                self._heard.pop(question.id, None)
            elif question.id in self._heard:
                found.setdefault(question.id, question)
        return sorted(found.values(), key=lambda q: (q.requested_at_ms or 0, q.id))

    async def load(self, approval_id: str) -> PendingApproval | None:
        """The question, while it is open. Raises `StoreError`."""
        return await self._stored.load_pending(approval_id) or self._heard.get(approval_id)

    async def resolve(self, approval_id: str, decision: str) -> bool:
        """Answer a question where it was asked; False when it is not open (any more).

        Raises `InvalidDecision`, after which it still is, `StoreError`, and `PeerUnavailable` when
        another node does not say what became of the answer.
        """
        question = await self.load(approval_id)
        if question is None:
            return False
        if question.run_id is None or await self._asked_here():
            return await self._stored.resolve(approval_id, decision)
        return await self._engine.resolve_approval(approval_id, decision)

    async def _asked_here(self) -> bool:
        """True when whoever runs the runs is on this node's bus."""
        try:
            return await self._engine.shares_bus()
        except (LemonError, OSError):
            return False

    def _hear(self, event: Event) -> None:
        match event.payload:
            case ApprovalRequested(approval_id=approval_id, pending=pending):
                self._heard[approval_id] = pending
                if len(self._heard) > MAX_HEARD:
                    del self._heard[next(iter(self._heard))]
            case ApprovalResolved(approval_id=approval_id):
                self._heard.pop(approval_id, None)
            case _:
                pass
