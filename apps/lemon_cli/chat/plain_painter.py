"""How what is shown looks on a terminal that takes lines only: no escape sequence at all."""

from __future__ import annotations

from collections.abc import Iterable

from lemon_cli.chat.answers import choices_text, question_lines
from lemon_cli.chat.shown import (
    MARKS,
    Asked,
    Began,
    Block,
    Note,
    Piece,
    Said,
    Shown,
    Step,
    Text,
    TurnEnd,
    Waits,
)
from lemon_cli.render import printable


class PlainPainter:
    """Lines without any escape sequence; the answer comes in pieces, as it arrives."""

    def __init__(self) -> None:
        self._mid_line = False

    def leave_line(self) -> None:
        """Somebody else has written into the line: what follows begins a new one."""
        self._mid_line = True

    def paint(self, shown: Iterable[Shown]) -> str:
        """The text to print."""
        return "".join(map(self._one, shown))

    def _one(self, shown: Shown) -> str:
        match shown:
            case Piece(text=text):
                text = printable(text)
                self._mid_line = not text.endswith("\n") if text else self._mid_line
                return text
            case Said(is_late=False) | Block():
                # The terminal shows what is typed, and the answer came in pieces.
                return ""
            case Said(text=text, how=how):
                return self._line(f"> {text}" + (f"  ({how})" if how else ""))
            case Waits(text=text):
                return self._line(f"lemon: waits: {text}")
            case Began(title=title):
                return self._line(f"  ▸ {title}")
            case Step():
                lines = [_step(shown)]
                lines += (f"    {line}" for line in (shown.diff or "").splitlines())
                return self._line("\n".join(lines))
            case Asked(question=question):
                first, *more = question_lines(question)
                lines = [f"  ? {first}", *(f"    {line}" for line in more)]
                lines.append(f"    answer with {choices_text(question)}")
                return self._line("\n".join(lines))
            case Note(text=text):
                return self._line(f"lemon: {text}")
            case Text(text=text):
                return self._line(text)
            case TurnEnd(summary=text):
                return self._line(f"  [{text}]" if text else "")

    def _line(self, text: str) -> str:
        text = printable(text)
        before = "\n" if self._mid_line else ""
        self._mid_line = False
        return f"{before}{text}\n" if text else before


def _step(step: Step) -> str:
    reason = f": {step.message}" if step.message else ""
    return f"  {MARKS[step.ok]} {step.title}{reason}"
