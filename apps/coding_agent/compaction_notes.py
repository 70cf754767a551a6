"""Compactions as actions, so that whoever watches a run knows why nothing comes for a while."""

from __future__ import annotations

from lemon_agent import Compacted, LoopState, LoopStateTransition
from lemon_core.events import Action
from lemon_gateway.requests import EngineAction

SHORTENING = "Shortening the conversation"


class CompactionNotes:
    """One action per pass: it starts with the loop's state and completes with what was saved."""

    def __init__(self) -> None:
        self._count = 0
        self._is_open = False

    def translate(self, event: LoopStateTransition | Compacted, run_ref: str) -> list[EngineAction]:
        """The actions that this event means."""
        if isinstance(event, Compacted):
            self._begin()
            self._is_open = False
            title = (
                f"Shortened the conversation: about {event.tokens_before:,} tokens became "
                f"{event.tokens_after:,}"
            )
            action = self._action(title, event)
            return [EngineAction(run_ref, action, "completed", ok=True)]
        if event.target is LoopState.COMPRESSING_CONTEXT:
            self._begin()
            return [EngineAction(run_ref, self._action(SHORTENING), "started")]
        if self._is_open:
            self._is_open = False
            return [EngineAction(run_ref, self._action(SHORTENING), "completed", ok=False)]
        return []

    def _begin(self) -> None:
        if not self._is_open:
            self._count += 1
            self._is_open = True

    def _action(self, title: str, done: Compacted | None = None) -> Action:
        detail: dict[str, object] | None = None
        if done is not None:
            detail = {
                "tokens_before": done.tokens_before,
                "tokens_after": done.tokens_after,
                "removed_messages": done.removed_messages,
                "forced": done.forced,
            }
        return Action(id=f"lemon.compaction.{self._count}", kind="note", title=title, detail=detail)
