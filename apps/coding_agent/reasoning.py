"""A block of a model's thinking, shown as an action that grows; it never becomes answer text."""

from __future__ import annotations

from typing import Final

from coding_agent.tool_titles import cut
from lemon_core.events import Action
from lemon_gateway.requests import EngineAction

UPDATE_BYTES: Final = 700
SHOWN_CHARS: Final = 500
TITLE_CHARS: Final = 100


class ReasoningBlock:
    """Keeps of the text what is shown of it: its beginning and its end."""

    def __init__(self, index: int, sequence: int) -> None:
        self._id = f"lemon.reasoning.{index}.{sequence}"
        self._head = ""
        self._tail = ""
        self._fresh_bytes = 0

    def add(self, text: str) -> bool:
        """Add text; True when so much has come that it should be shown."""
        self._head = (self._head + text[:TITLE_CHARS])[:TITLE_CHARS]
        # One character more than is shown tells that something was cut.
        self._tail = (self._tail + text)[-SHOWN_CHARS - 1 :]
        self._fresh_bytes += len(text.encode(errors="replace"))
        if self._fresh_bytes < UPDATE_BYTES:
            return False
        self._fresh_bytes = 0
        return True

    def started(self, run_ref: str) -> EngineAction:
        """The block has begun."""
        return EngineAction(run_ref, self._action(""), "started")

    def updated(self, run_ref: str) -> EngineAction:
        """The block has grown."""
        is_cut = len(self._tail) > SHOWN_CHARS
        text = f"...{self._tail[-SHOWN_CHARS:]}" if is_cut else self._tail
        return EngineAction(run_ref, self._action(text), "updated")

    def completed(self, run_ref: str) -> EngineAction:
        """The block has ended."""
        is_cut = len(self._tail) > SHOWN_CHARS
        text = f"...{self._tail[3 - SHOWN_CHARS :]}" if is_cut else self._tail
        return EngineAction(run_ref, self._action(text), "completed", ok=True)

    def _action(self, text: str) -> Action:
        title = cut(" ".join(self._head.split()), TITLE_CHARS) or "reasoning"
        detail: dict[str, object] = {"reasoning": {"text": text, "source": "lemon_reasoning"}}
        return Action(id=self._id, kind="reasoning", title=title, detail=detail)
