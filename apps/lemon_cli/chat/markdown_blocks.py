"""Cuts a growing Markdown text into blocks that nothing coming later can change.

A block is printed once, above the input, and never touched again: only what is still growing is
redrawn. A list is one block even with blank lines between its items, as its numbers depend on it.
"""

from __future__ import annotations

import re
from typing import Final

_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})(.*)")
_ITEM: Final = re.compile(r"([-*+]|\d{1,9}[.)])\s")
_HEADING: Final = re.compile(r"#{1,6}\s")


def blocks_of(text: str) -> list[str]:
    """The blocks of a whole text: each is set apart from the next in the same way."""
    blocks = MarkdownBlocks()
    return [*blocks.feed(text), *blocks.finish()]


class MarkdownBlocks:
    """`feed` gives the blocks that are whole; `rest` is what still grows."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._partial = ""
        self._fence: str | None = None
        self._after_blank = False

    @property
    def rest(self) -> str:
        """The text that is in no block yet."""
        return "\n".join([*self._lines, self._partial]) if self._partial else "\n".join(self._lines)

    def feed(self, text: str) -> list[str]:
        """Take more of the text; the blocks that it completes, in order."""
        *lines, self._partial = (self._partial + text).split("\n")
        blocks: list[str] = []
        for line in lines:
            self._take(line, blocks)
        return blocks

    def finish(self) -> list[str]:
        """The text is over, or something else follows: what is left, as at most one block."""
        blocks: list[str] = []
        if self._partial:
            self._take(self._partial, blocks)
        self._cut(blocks)
        self._partial, self._fence = "", None
        return blocks

    def _take(self, line: str, blocks: list[str]) -> None:
        mark = _FENCE.match(line)
        if self._fence is not None:
            self._lines.append(line)
            if mark and mark[1].startswith(self._fence) and not mark[2].strip():
                self._fence = None
                if not self._is_list:
                    self._cut(blocks)
            return
        if not line.strip():
            self._after_blank = bool(self._lines)
            if self._lines:
                self._lines.append("")
            return
        is_apart = bool(_HEADING.match(line)) or (mark is not None and not self._is_list)
        if is_apart or (self._after_blank and not self._continues(line)):
            self._cut(blocks)
        self._after_blank = False
        self._lines.append(line)
        if mark:
            self._fence = mark[1]
        elif _HEADING.match(line):
            self._cut(blocks)

    @property
    def _is_list(self) -> bool:
        return bool(self._lines) and bool(_ITEM.match(self._lines[0]))

    def _continues(self, line: str) -> bool:
        """Whether `line`, after a blank one, still belongs to the block before."""
        return line[0].isspace() or (self._is_list and bool(_ITEM.match(line)))

    def _cut(self, blocks: list[str]) -> None:
        block = "\n".join(self._lines).rstrip()
        self._lines.clear()
        self._after_blank = False
        if block.strip():
            blocks.append(block)
