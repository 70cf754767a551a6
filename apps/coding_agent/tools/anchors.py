"""Anchors of lines: a number and two letters that tell whether the line is still the same.

The letters stand for an 8-bit hash of the line without its white space. A line that has no letter
or digit, such as a lone bracket, is one of many: its number is mixed in.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

from lemon_agent import ToolError

LETTERS: Final = "ZPMQVRWSNKTXJBYH"
_TAG: Final = re.compile(rf"\s*(\d{{1,9}})#([{LETTERS}]{{2}})(?::.*)?\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The line that a model means: its number from 1, and the letters that it saw."""

    number: int
    letters: str


def letters_of(number: int, line: str) -> str:
    """The two letters of a line."""
    bare = "".join(line.split())
    if not any(map(str.isalnum, bare)):
        bare = f"{number}{bare}"
    value = zlib.crc32(bare.encode()) & 0xFF
    return LETTERS[value >> 4] + LETTERS[value & 0xF]


def tag_of(number: int, line: str) -> str:
    """The anchor of a line as `read` shows it."""
    return f"{number}#{letters_of(number, line)}"


def parse_anchor(text: str) -> Anchor:
    """The anchor in `text`, which may be a whole line of `read`; raises `ToolError`."""
    match = _TAG.fullmatch(text)
    if match is None:
        raise ToolError(f"{text[:40]!r} is no anchor: use one such as 12#ZP, from read hashlines")
    return Anchor(int(match[1]), match[2])
