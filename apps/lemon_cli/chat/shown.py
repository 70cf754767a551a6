"""What the conversation shows, as values: a screen decides how they look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lemon_core.events import PendingApproval

PROMPT: Final = "› "
MARKS: Final = {True: "✓", False: "✗"}


@dataclass(frozen=True, slots=True)
class Said:
    """What the person sent, where its answer follows; `how` tells what else became of it.

    `is_late` when it had to wait, so that it does not stand where it was typed.
    """

    text: str
    images: tuple[str, ...] = ()
    how: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Waits:
    """What the person sent waits, for screens without a place that shows what does."""

    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the answer as it arrives, for screens that cannot show it growing."""

    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A whole block of the answer's Markdown."""

    markdown: str


@dataclass(frozen=True, slots=True)
class Began:
    """A tool call has begun, for screens without a place that shows what is going on."""

    title: str


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call is over."""

    title: str
    ok: bool
    message: str | None = None
    diff: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question was asked, for screens without a place that shows it."""

    question: PendingApproval


@dataclass(frozen=True, slots=True)
class Note:
    """A line about the conversation."""

    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class Text:
    """Several lines in answer to a command, as they are."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What a turn took, in one line."""

    summary: str


Shown = Said | Waits | Piece | Block | Began | Step | Asked | Note | Text | TurnEnd


@dataclass(frozen=True, slots=True)
class Live:
    """What is going on right now.

    `growing` is the part of the answer that is in no block yet, `steps` the tools that work,
    `waiting` the messages in line, `question` the oldest open one.
    """

    growing: str = ""
    steps: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    question: PendingApproval | None = None
    question_count: int = 0
    is_busy: bool = False
    is_thinking: bool = False
