"""The lines above the input: what is going on right now, never more than fit."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, chop_cells

from lemon_cli.chat.answers import choices_text
from lemon_cli.chat.shown import Live
from lemon_cli.render import printable

MAX_WAITING: Final = 3
Fragment = tuple[str, str]
"""A style name of the screen and a text, as prompt_toolkit takes it."""


def live_lines(live: Live, *, width: int, height: int, after_steps: bool = False) -> list[Fragment]:
    """At most `height` lines of at most `width` cells, styled; the lowest matter most.

    A blank line stands above them where one will stand once they are written, so that nothing
    moves then; `after_steps` tells that the last thing written was a step, which steps follow.
    """
    below: list[Fragment] = [("class:step", f"  ▸ {title}") for title in live.steps]
    if live.is_thinking:
        below.append(("class:dim", "  thinking …"))
    elif live.is_busy and not live.steps and not live.growing and live.question is None:
        below.append(("class:dim", "  working …"))
    below += (("class:dim", f"  queued: {text}") for text in live.waiting[:MAX_WAITING])
    if len(live.waiting) > MAX_WAITING:
        below.append(("class:dim", f"  and {len(live.waiting) - MAX_WAITING} more"))
    if live.question is not None:
        others = f"   (and {live.question_count - 1} more)" if live.question_count > 1 else ""
        below.append(("class:ask", f"  {choices_text(live.question)}{others}"))
    below = [(style, clipped(text, width)) for style, text in below[-height:]]
    lines = [*(("", line) for line in tail(live.growing, width, height - len(below))), *below]
    goes_on = live.question is not None or (after_steps and not live.growing)
    is_apart = bool(lines) and not goes_on and len(lines) < height
    return [("", ""), *lines] if is_apart else lines


def tail(text: str, width: int, count: int) -> list[str]:
    """The last `count` lines of `text`, long ones wrapped."""
    if count <= 0 or not text:
        return []
    lines: list[str] = []
    # From below: a block may be long, and what does not show need not be wrapped.
    for line in reversed(printable(text).expandtabs(4).split("\n")):
        lines[:0] = wrapped(line, width)
        if len(lines) >= count:
            break
    return lines[-count:]


def wrapped(line: str, width: int) -> list[str]:
    """`line` in pieces of at most `width` cells, cut between words as Markdown will be."""
    pieces: list[str] = []
    while True:
        # More than `width` cells, but never all of a long line again.
        head, *more = chop_cells(line[: 2 * width], width) or [""]
        if not more and len(line) <= 2 * width:
            return [*pieces, head]
        end = len(head) if line[len(head)] == " " else head.rfind(" ")
        if not head[: max(end, 0)].strip():
            end = len(head)
        pieces.append(line[:end].rstrip())
        line = line[end:].lstrip(" ")


def clipped(text: str, width: int) -> str:
    """`text` in one line of at most `width` cells."""
    line = printable(text).replace("\n", " ")
    return line if cell_len(line) <= width else chop_cells(line, max(1, width - 1))[0] + "…"
