"""The answers that a question takes, and the keys that give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lemon_cli.chat.diffs import CHANGES, change_of
from lemon_cli.render import one_line, printable
from lemon_cli.work_text import asked
from lemon_core.events import PendingApproval

MAX_LINES: Final = 200
# By the first of these that it has, `asked` names an action.
NAMES: Final = ("command", "path", "url")
# They turn the order of what stands around them: a command must read as it runs.
_TURNING: Final = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: its key, a letter that `lemon run` takes too, and what it means."""

    key: str
    letter: str
    decision: str
    words: str


CHOICES: Final = (
    Choice("1", "y", "approve_once", "once"),
    Choice("2", "s", "approve_session", "for this session"),
    Choice("3", "a", "approve_agent", "always, for this agent"),
    Choice("4", "n", "deny", "no"),
)
OUTCOMES: Final = {
    "approve_once": "allowed once",
    "approve_session": "allowed for the session",
    "approve_agent": "allowed for the agent",
    "approve_global": "allowed for everybody",
    "deny": "denied",
    "timeout": "not answered in time",
}


def choices(question: PendingApproval) -> tuple[Choice, ...]:
    """The answers that the question takes."""
    taken = question.decisions
    return tuple(choice for choice in CHOICES if taken is None or choice.decision in taken)


def decision_of(text: str, question: PendingApproval) -> str | None:
    """The answer that a line or a key is; None when it is something else."""
    word = text.strip().lower()
    for choice in choices(question):
        if word in (choice.key, choice.letter):
            return choice.decision
    return None


def question_lines(question: PendingApproval) -> list[str]:
    """What is asked, whole within reason: nobody should allow what they cannot read."""
    text = "\n".join([asked(question), *_details(question.action or {})])
    text = _TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", printable(text))
    lines = text.splitlines() or [""]
    left = len(lines) - MAX_LINES
    more = [f"… {left} more lines"] if left > 0 else []
    return [f"{question.tool} asks:", *lines[:MAX_LINES], *more]


def _details(action: Mapping[str, object]) -> list[str]:
    """What an action holds besides what it is named by: the change of a file, and the rest."""
    named = next((name for name in NAMES if isinstance(action.get(name), str)), None)
    if named is None:
        return []  # the whole action is shown then
    told = {named, *CHANGES}
    more = [f"{name}: {one_line(str(action[name]))}" for name in action if name not in told]
    return [*more, *change_of(action)]


def choices_text(question: PendingApproval) -> str:
    """The keys that answer it."""
    return "   ".join(f"{choice.key} {choice.words}" for choice in choices(question))
