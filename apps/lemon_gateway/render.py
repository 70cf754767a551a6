"""A run as a few lines of plain text, for callers without a rendering of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lemon_core.events import (
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    RunCompleted,
    RunStarted,
)
from lemon_core.resume import ResumeToken
from lemon_gateway.errors import error_code

Status = Literal["running", "done", "error", "cancelled"]

_CANCELS: Final = frozenset({"user_requested", "interrupted"})
_HEADERS: Final[dict[Status, str]] = {
    "running": "Running",
    "done": "Done",
    "error": "Failed",
    "cancelled": "Cancelled",
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """What to show now."""

    text: str
    status: Status


@dataclass(frozen=True, slots=True)
class RenderState:
    """A run as far as it has been shown; `Basic` makes a new one for each event."""

    title: str | None = None
    actions: dict[str, str] = field(default_factory=dict)  # lines by action id
    answer: str = ""
    resume: ResumeToken | None = None
    status: Status = "running"
    error: str = ""
    shown: Rendered | None = None


class Basic:
    """Header, one line for each action in the order of their first events, answer, resume line.

    While a run lives its answer is not shown: a line that grows with every delta is no use here.
    """

    def init(self, meta: dict[str, object] | None = None) -> RenderState:
        """The state before the first event; `meta.title` names the run."""
        title = (meta or {}).get("title")
        return RenderState(title=title if isinstance(title, str) and title.strip() else None)

    def apply_event(self, state: RenderState, event: Event) -> tuple[RenderState, Rendered | None]:
        """The next state, and what to show when that has changed."""
        state = _take(state, event.payload)
        rendered = Rendered(_text(state), state.status)
        if rendered == state.shown or not _tells(event.payload):
            return state, None
        return replace(state, shown=rendered), rendered


def _tells(payload: object) -> bool:
    return isinstance(payload, RunStarted | EngineStarted | EngineAction | RunCompleted)


def _take(state: RenderState, payload: object) -> RenderState:
    match payload:
        case Delta(text=text):
            return replace(state, answer=state.answer + text)
        case EngineStarted(resume=resume, title=title):
            return replace(state, resume=resume or state.resume, title=state.title or title)
        case EngineAction(action=action, phase=phase, ok=ok):
            word = "failed" if ok is False else phase
            line = f"- {action.title}: {word}"
            return replace(state, actions={**state.actions, action.id: line})
        case RunCompleted(completed=completed):
            return _ended(state, completed)
        case _:
            return state


def _ended(state: RenderState, completed: Completion) -> RenderState:
    code = "" if completed.ok else error_code(completed.error)
    status: Status = "done" if completed.ok else "cancelled" if code in _CANCELS else "error"
    return replace(
        state,
        answer=completed.answer or state.answer,
        resume=completed.resume or state.resume,
        status=status,
        error=code if status == "error" else "",
    )


def _text(state: RenderState) -> str:
    header = _HEADERS[state.status] + (f": {state.title}" if state.title else "")
    parts = ["\n".join([header, *state.actions.values()])]
    if state.status != "running":
        parts += [text for text in (state.error, state.answer) if text]
    if state.resume is not None:
        parts.append(state.resume.format_plain())
    return "\n\n".join(parts)
