"""Ticks and columns, as several commands print them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lemon_core.commands import CommandContext

_GREEN, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


def tick(context: CommandContext, good: bool) -> str:
    """✓ or ✗, coloured on a terminal."""
    sign, colour = ("✓", _GREEN) if good else ("✗", _RED)
    return f"{colour}{sign}{_PLAIN}" if _colours(context) else sign


def dim(context: CommandContext, text: str) -> str:
    """`text` in the background, on a terminal."""
    return f"{_DIM}{text}{_PLAIN}" if _colours(context) else text


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows of equally many cells as aligned lines."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ]
        lines.append(f"{indent}{'  '.join(cells)}".rstrip())
    return lines


def _width(cell: str) -> int:
    """How wide `cell` is on the screen, where colours take no room."""
    for colour in (_GREEN, _RED, _DIM, _PLAIN):
        cell = cell.replace(colour, "")
    return len(cell)


def _colours(context: CommandContext) -> bool:
    return sys.stdout.isatty() and not context.environ.get("NO_COLOR")
