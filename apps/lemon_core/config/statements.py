"""A TOML document as the pieces that an edit may touch: headers and assignments with their places.

The reader is `tomllib` itself: lines are collected until they parse on their own, which is what
ends a statement of several lines, so that strings and arrays need no second reader here. Positions
are offsets into the text as it was given, line ends included.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lemon_core.config.source import KeyPath

# A statement longer than this is passed over when lines are looked up, and refused by edits.
MAX_STATEMENT_LINES: Final = 200


@dataclass(frozen=True, slots=True)
class Statement:
    """A header or an assignment, from the start of its first line to the end of its last.

    `path` is the whole path of what it names, with the index of every array of tables on the way;
    `section` is that of the header above it (its own, for a header).
    """

    path: KeyPath
    section: KeyPath
    line: int
    start: int
    end: int
    is_header: bool


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a document; not `complete` when one is too long to be followed."""

    items: tuple[Statement, ...]
    complete: bool = True


def statements(text: str) -> Statements:
    """The statements of a valid document."""
    import tomllib

    found: list[Statement] = []
    section: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    pending: list[str] = []
    start = offset = 0
    # `splitlines` would also split at characters that a comment may hold.
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        pending.append(line)
        offset += len(line)
        try:
            parsed = tomllib.loads("".join(pending))
        except tomllib.TOMLDecodeError:
            if len(pending) < MAX_STATEMENT_LINES:
                continue
            return Statements(tuple(found), complete=False)
        if parsed:
            first, head = number - len(pending) + 1, pending[0].lstrip()
            is_header = head.startswith("[")
            if is_header:
                names = _single_keys(parsed)
                section = _numbered(names, counts, is_array=head.startswith("[["))
            path = section if is_header else (*section, *_assigned("".join(pending)))
            found.append(Statement(path, section, first, start, offset, is_header))
        start, pending = offset, []
    return Statements(tuple(found), complete=not pending)


def split_assignment(text: str) -> tuple[tuple[str, ...], int]:
    """The keys that the assignment `text` starts with, and the offset just behind its `=`."""
    import tomllib

    at = text.find("=")
    while at >= 0:
        try:
            return _single_keys(tomllib.loads(f"{text[:at]}= 0")), at + 1
        except tomllib.TOMLDecodeError:
            at = text.find("=", at + 1)  # that one belonged to a quoted key
    raise ValueError("not an assignment")


def _assigned(text: str) -> tuple[str, ...]:
    return split_assignment(text)[0]


def _single_keys(parsed: Mapping[str, object]) -> tuple[str, ...]:
    """The keys of a document of one header, or of one key with a plain value."""
    keys: list[str] = []
    value: object = parsed
    while True:
        if isinstance(value, list) and len(value) == 1 and value[0] == {}:
            value = value[0]
        if not isinstance(value, Mapping) or len(value) != 1:
            return tuple(keys)
        (key, value), *_ = value.items()
        keys.append(key)


def _numbered(names: tuple[str, ...], counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """A header's path with the index of every array of tables that it goes through."""
    path: list[str | int] = []
    for end, name in enumerate(names, 1):
        path.append(name)
        key = tuple(path)
        if is_array and end == len(names):
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            path.append(counts[key])
    return tuple(path)
