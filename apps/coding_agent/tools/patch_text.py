"""The patch format: which files it adds, deletes, moves and changes, and how; without any I/O.

*** Begin Patch
*** Update File: a.py
*** Move to: b.py
@@ def f():
 context
-old
+new
*** End Patch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from coding_agent.tools.text_file import line_end, split_keeping_ends, without_end
from lemon_agent import ToolError

BEGIN: Final = "*** Begin Patch"
END: Final = "*** End Patch"
END_OF_FILE: Final = "*** End of File"
_HEADERS: Final = {"Add": "*** Add File: ", "Delete": "*** Delete File: "} | {
    "Update": "*** Update File: ",
    "Move": "*** Move to: ",
}

Kind = Literal["add", "delete", "update"]


@dataclass(slots=True)
class Hunk:
    """Lines with their mark (blank, `-`, `+`), looked for below the line `anchor`."""

    anchor: str = ""
    lines: list[tuple[str, str]] = field(default_factory=list)
    at_end: bool = False

    def before(self) -> list[str]:
        """The lines that the file must have."""
        return [line for mark, line in self.lines if mark != "+"]


@dataclass(slots=True)
class FileChange:
    """What happens to one file; `added` is the content of a new one."""

    kind: Kind
    path: str
    move_to: str | None = None
    added: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def additions(self) -> int:
        """How many lines it adds."""
        return len(self.added) + _count(self.hunks, "+")

    @property
    def removals(self) -> int:
        """How many lines its hunks remove."""
        return _count(self.hunks, "-")


def parse_patch(text: str) -> list[FileChange]:
    """The changes in `text`; raises `ToolError` naming the line that cannot be read."""
    lines = [line.removesuffix("\r") for line in text.strip().split("\n")]
    if lines[0].strip() != BEGIN or lines[-1].strip() != END:
        raise ToolError(f"a patch begins with {BEGIN!r} and ends with {END!r}")
    changes: list[FileChange] = []
    for number, line in enumerate(lines[1:-1], 2):
        if not _starts_file(line, changes):
            _add_line(line, number, changes)
    if not changes:
        raise ToolError("the patch names no file")
    for change in changes:
        change.hunks = [hunk for hunk in change.hunks if hunk.lines]
        if change.kind == "update" and not change.hunks and change.move_to is None:
            raise ToolError(f"the patch changes nothing in {change.path}")
    return changes


def apply_hunks(text: str, change: FileChange) -> str:
    """`text` with the hunks applied in order; raises `ToolError` when a context does not fit.

    Contexts match exactly, but for line ends, at the first place below the hunk before; a hunk
    without context adds at the end of the file. New lines end as those beside them.
    """
    lines = split_keeping_ends(text)
    bare = [without_end(line) for line in lines]
    usual = next(filter(None, map(line_end, lines)), "\n")
    done: list[str] = []
    cursor = 0
    for number, hunk in enumerate(change.hunks, 1):
        place = _place(bare, hunk, cursor)
        if place is None:
            raise ToolError(f"{change.path}: hunk {number} does not fit: {_seen(hunk)}")
        done += lines[cursor:place]
        cursor = place
        for mark, line in hunk.lines:
            if mark == "+":
                beside = lines[cursor : cursor + 1] or lines[-1:]
                done.append(line + ((line_end(beside[0]) if beside else "") or usual))
            else:
                if mark == " ":
                    done.append(lines[cursor])
                cursor += 1
    done += lines[cursor:]
    return _joined(done, usual, ends_open=bool(text) and not text.endswith("\n"))


def _starts_file(line: str, changes: list[FileChange]) -> bool:
    for kind, header in _HEADERS.items():
        if not line.startswith(header):
            continue
        path = line.removeprefix(header).strip()
        if kind != "Move":
            kinds: dict[str, Kind] = {"Add": "add", "Delete": "delete", "Update": "update"}
            changes.append(FileChange(kinds[kind], path))
        elif changes and changes[-1].kind == "update" and not changes[-1].hunks:
            changes[-1].move_to = path
        else:
            raise ToolError(f"{line!r} stands directly below an update")
        return True
    return False


def _add_line(line: str, number: int, changes: list[FileChange]) -> None:
    change = changes[-1] if changes else None
    if change is not None and change.kind == "add" and line.startswith("+"):
        change.added.append(line[1:])
    elif change is not None and change.kind == "update":
        _add_to_hunk(line, number, change.hunks)
    elif line.strip():
        raise ToolError(f"line {number} of the patch cannot be read: {line[:80]!r}")


def _add_to_hunk(line: str, number: int, hunks: list[Hunk]) -> None:
    if line.startswith("@@"):
        anchor = line[2:].strip()
        # Line numbers of a unified diff say nothing here.
        hunks.append(Hunk("" if anchor.startswith("-") else anchor))
        return
    if not hunks:
        hunks.append(Hunk())
    if line == END_OF_FILE:
        hunks[-1].at_end = True
    elif line == "" or line[0] in " -+":
        hunks[-1].lines.append((line[:1] or " ", line[1:]))
    else:
        raise ToolError(f"line {number} of the patch begins with none of ' ', '-', '+', '@@'")


def _place(bare: Sequence[str], hunk: Hunk, cursor: int) -> int | None:
    wanted = hunk.before()
    if hunk.anchor:
        found = [i for i in range(cursor, len(bare)) if bare[i].strip() == hunk.anchor]
        if not found:
            return None
        # The line itself may be the first of the context.
        starts = wanted and wanted[0].strip() == hunk.anchor
        cursor = found[0] + (0 if starts else 1)
        if not wanted:
            return cursor
    elif not wanted:
        return len(bare)
    last = len(bare) - len(wanted)
    first = max(last, cursor) if hunk.at_end else cursor
    for place in range(first, last + 1):
        if list(bare[place : place + len(wanted)]) == wanted:
            return place
    return None


def _seen(hunk: Hunk) -> str:
    shown = hunk.before()[:3]
    where = f"below {hunk.anchor!r}, " if hunk.anchor else ""
    return f"{where}these lines are not in the file in this order: {' / '.join(shown)}"


def _joined(lines: Sequence[str], usual: str, *, ends_open: bool) -> str:
    whole = [line if line_end(line) else line + usual for line in lines]
    if whole and ends_open:
        whole[-1] = without_end(whole[-1])
    return "".join(whole)


def _count(hunks: Sequence[Hunk], mark: str) -> int:
    return sum(sign == mark for hunk in hunks for sign, _ in hunk.lines)
