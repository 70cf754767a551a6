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


def live_lines(live: Live, *, width: int, height: int) -> list[Fragment]:
    """At most `height` lines of at most `width` cells, styled; the lowest matter most."""
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
    room = height - len(below)
    return [*(("", line) for line in tail(live.growing, width, room)), *below]


def tail(text: str, width: int, count: int) -> list[str]:
    """The last `count` lines of `text`, long ones wrapped."""
    if count <= 0 or not text:
        return []
    lines: list[str] = []
    # From below: a block may be long, and what does not show need not be wrapped.
    for line in reversed(printable(text).expandtabs(4).split("\n")):
        lines[:0] = chop_cells(line, width) or [""]
        if len(lines) >= count:
            break
    return lines[-count:]


def clipped(text: str, width: int) -> str:
    """`text` in one line of at most `width` cells."""
    line = printable(text).replace("\n", " ")
    return line if cell_len(line) <= width else chop_cells(line, max(1, width - 1))[0] + "…"
