"""How what is shown looks on a terminal that can more than lines: as text with styles.

Everything that comes from a model or a tool loses its control characters here, before and after
rich has made something of it: only rich's own styles put escape sequences into the output.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text as RichText

from lemon_cli.chat.answers import question_lines
from lemon_cli.chat.markdown import markdown
from lemon_cli.chat.shown import (
    MARKS,
    PROMPT,
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
from lemon_cli.chat.terminal import ColorSystem
from lemon_cli.render import one_line, printable

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
_NOTE_STYLES: Final = {"info": "dim", "warning": "yellow", "error": "bold red"}


class RichPainter:
    """Text with styles; blocks of the answer are set as Markdown."""

    def __init__(self, colors: ColorSystem | None) -> None:
        self._colors = colors
        self._last: type[Shown] | None = None

    @property
    def is_after_step(self) -> bool:
        """Whether a step was painted last."""
        return self._last is Step

    def paint(self, shown: Iterable[Shown], width: int) -> str:
        """The text to print, in lines of at most `width`."""
        out = io.StringIO()
        console = self._console(out, width)
        for each in shown:
            what = _renderable(each)
            if what is None:
                continue
            lines = _lines(console, what)
            kind = type(each)
            # Steps stand together, and so do notes; everything else is set apart.
            if self._last is not None and (kind is not self._last or kind not in (Step, Note)):
                out.write("\n")
            self._last = kind
            console.print(Segments(lines), end="")
        return out.getvalue()

    def _console(self, out: io.StringIO, width: int) -> Console:
        return Console(
            file=out,
            force_terminal=True,
            # Without colours rich still sets bold and the like.
            color_system=self._colors or "standard",
            no_color=self._colors is None,
            width=width,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )


def _renderable(shown: Shown) -> RenderableType | None:
    """What rich prints for it; None for what only plain screens need."""
    match shown:
        case Said():
            return _said(shown)
        case Block(markdown=text):
            return markdown(printable(text))
        case Asked(question=question):
            return _question(question_lines(question))
        case Waits() | Piece() | Began():
            return None
        case Step():
            return _rich_step(shown)
        case Note(text=text, level=level):
            return RichText(printable(text), _NOTE_STYLES[level])
        case Text(text=text):
            return RichText(printable(text))
        case TurnEnd(summary=text):
            return RichText(text, "dim") if text else None


def _lines(console: Console, what: RenderableType) -> list[Segment]:
    """The lines of `what`, without blank ones around them or blanks at their ends.

    Characters that rich itself took from a text, such as those of entities, lose their power.
    """
    segments = (Segment(printable(s.text), s.style) for s in console.render(what) if not s.control)
    lines = [_stripped(line) for line in Segment.split_lines(segments)]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    return [segment for line in lines for segment in (*line, Segment.line())]


def _stripped(line: list[Segment]) -> list[Segment]:
    """Lines filled up with blanks break when the window becomes narrower, and are copied so."""
    kept = list(line)
    while kept:
        text = kept[-1].text.rstrip()
        if text:
            kept[-1] = Segment(text, kept[-1].style)
            break
        del kept[-1]
    return kept


def _said(said: Said) -> RenderableType:
    line = RichText()
    line.append(PROMPT, "bold cyan")
    line.append(printable(said.text).replace("\n", "\n  "), "bold")
    if said.how:
        line.append(f"  ({said.how})", "dim")
    for name in said.images:
        line.append(f"\n  + {one_line(name)}", "dim")
    return line


def _question(lines: list[str]) -> RenderableType:
    text = RichText()
    text.append(f"  ? {lines[0]}", "bold yellow")
    for line in lines[1:]:
        text.append(f"\n    {line}")
    return text


def _rich_step(step: Step) -> RenderableType:
    text = RichText()
    text.append(f"  {MARKS[step.ok]}", "green" if step.ok else "bold red")
    text.append(f" {step.title}")
    if step.message:
        text.append(f": {step.message}", "dim" if step.ok else "red")
    for line in printable(step.diff or "").splitlines():
        text.append(f"\n    {line}", _DIFF_STYLES.get(line[:1], "dim"))
    return text
