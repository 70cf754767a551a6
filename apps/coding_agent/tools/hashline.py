"""`hashline_edit`: change lines by the anchors that `read` showed; a stale one changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal

import anyio.to_thread

from coding_agent.tools.anchors import Anchor, letters_of, parse_anchor, tag_of
from coding_agent.tools.change_diff import text_diff
from coding_agent.tools.file_access import read_file, write_file
from coding_agent.tools.snapshots import keep_before
from coding_agent.tools.text_file import TextFile, line_end, split_keeping_ends, without_end
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.workspace import require_size
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

AROUND: Final = 2
MAX_SHOWN_STALE: Final = 10

Op = Literal["replace", "append", "prepend"]


async def _hashline_edit(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    path = env.guard.resolve(call.params["path"], writing=True)
    shown = env.guard.shown(path)
    edits = [parse_edit(raw) for raw in call.params["edits"]]
    data = await anyio.to_thread.run_sync(read_file, path, shown)
    done = await anyio.to_thread.run_sync(apply_edits, data, edits, shown)
    require_size(done.content, env.policy.max_file_size, shown)
    kept = await keep_before(env, "hashline_edit", [path])
    await anyio.to_thread.run_sync(partial(write_file, expected=data), path, done.content, shown)
    details = {
        "path": shown,
        "diff": done.diff,
        "first_changed_line": done.first_changed_line,
        "edits_applied": done.applied,
        "noop_edits": done.noops,
        "deduplicated_edits": done.duplicates,
        **kept,
    }
    counts = f"{done.applied} applied, {done.noops} without effect, {done.duplicates} repeated"
    text = f"Edited {shown} from line {done.first_changed_line} on ({counts})\n{done.diff}"
    return AgentToolResult.of_text(text, details=details)


HASHLINE_EDIT: Final = ToolDef(
    name="hashline_edit",
    description=(
        "Change lines of a file by the anchors (N#XX) that read shows with hashlines=true. All "
        "anchors are checked first; when a line has changed since, nothing is written."
    ),
    parameters=schema(
        ("path", "edits"),
        path=text_param("File, relative to the working directory or absolute."),
        edits={
            "type": "array",
            "minItems": 1,
            "items": schema(
                ("op", "lines"),
                op={
                    "type": "string",
                    "enum": ["replace", "append", "prepend"],
                    "description": "replace pos to end; append after or prepend before pos.",
                },
                pos=text_param("Anchor; append and prepend without it mean the file's end, start."),
                end=text_param("Last line to replace; pos when left out."),
                lines={
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "New lines without anchors; none deletes.",
                },
            ),
        },
    ),
    execute=_hashline_edit,
    classes=frozenset({"dangerous"}),
    exclusive=True,
)


@dataclass(frozen=True, slots=True)
class LineEdit:
    """One edit; without `pos` it is at the end (append) or the start (prepend) of the file."""

    op: Op
    lines: tuple[str, ...]
    pos: Anchor | None = None
    end: Anchor | None = None

    @property
    def anchors(self) -> list[Anchor]:
        """Those that must fit the file."""
        return [anchor for anchor in (self.pos, self.end) if anchor is not None]

    def span(self, count: int) -> tuple[int, int]:
        """The lines of a file of `count` that it replaces, as a slice; empty when it only adds."""
        if self.op == "replace":
            assert self.pos is not None
            return self.pos.number - 1, (self.end or self.pos).number
        if self.pos is None:
            place = count if self.op == "append" else 0
        else:
            place = self.pos.number - (self.op == "prepend")
        return place, place


@dataclass(frozen=True, slots=True)
class Done:
    """The new content, and what was done to get there."""

    content: bytes
    diff: str
    first_changed_line: int
    applied: int
    noops: int
    duplicates: int


def parse_edit(raw: Mapping[str, Any]) -> LineEdit:
    """One edit as the model wrote it; raises `ToolError` for whatever would have to be ignored."""
    op, lines = raw["op"], tuple(part for text in raw["lines"] for part in _lines_of(text))
    pos = None if raw.get("pos") is None else parse_anchor(raw["pos"])
    end = None if raw.get("end") is None else parse_anchor(raw["end"])
    if op == "replace" and pos is None:
        raise ToolError("replace needs pos, the anchor of the first line to replace")
    if op != "replace" and end is not None:
        raise ToolError(f"end belongs to replace, not to {op}")
    if op != "replace" and not lines:
        raise ToolError(f"{op} needs lines")
    if pos and end and end.number < pos.number:
        raise ToolError(f"end (line {end.number}) stands before pos (line {pos.number})")
    return LineEdit(op, lines, pos, end)


def apply_edits(data: bytes, edits: Sequence[LineEdit], shown: str) -> Done:
    """`data` after all edits; raises `ToolError`, and then none of them was done.

    New lines end as the lines beside them do. A file without a line end at its end stays so.
    """
    file = TextFile.decode(data, shown)
    lines = split_keeping_ends(file.text)
    _require_fresh(lines, [anchor for edit in edits for anchor in edit.anchors], shown)
    unique = list(dict.fromkeys(edits))
    _require_apart(unique, len(lines))
    changed = list(lines)
    noops = 0
    # From the bottom up, so that the numbers above stay right. Of those at one place the later
    # ones go first: their lines then stand in the order of the call.
    order = sorted(enumerate(unique), key=lambda pair: (pair[1].span(len(lines)), pair[0]))
    for _, edit in reversed(order):
        start, end = edit.span(len(lines))
        new = _with_ends(edit.lines, lines, start, end)
        noops += [without_end(line) for line in lines[start:end]] == list(edit.lines)
        changed[start:end] = new
    text = _end_like(changed, file.text)
    if text == file.text:
        raise ToolError(f"No changes made to {shown}: the lines are what is there")
    diff, first = text_diff(file.text.replace("\r\n", "\n"), text.replace("\r\n", "\n"))
    repeated = len(edits) - len(unique)
    return Done(file.encode(text), diff, first, len(unique) - noops, noops, repeated)


def _lines_of(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _require_fresh(lines: Sequence[str], anchors: Sequence[Anchor], shown: str) -> None:
    stale = {
        anchor.number
        for anchor in anchors
        if not 1 <= anchor.number <= len(lines)
        or letters_of(anchor.number, without_end(lines[anchor.number - 1])) != anchor.letters
    }
    if not stale:
        return
    rows = [f"{len(stale)} anchors do not fit {shown} any more; nothing was changed. Now it reads:"]
    last = 0
    for number in sorted(stale)[:MAX_SHOWN_STALE]:
        if number > len(lines) or number < 1:
            rows.append(f">>> there is no line {number}: the file has {len(lines)} lines")
            continue
        for near in range(max(1, number - AROUND, last + 1), min(len(lines), number + AROUND) + 1):
            mark = ">>>" if near in stale else "   "
            line = without_end(lines[near - 1])
            rows.append(f"{mark} {tag_of(near, line)}:{line}")
            last = near
    raise ToolError("\n".join(rows))


def _require_apart(edits: Sequence[LineEdit], count: int) -> None:
    spans = sorted(edit.span(count) for edit in edits)
    for (start, end), (next_start, next_end) in pairwise(spans):
        # Two that only add may share a place; what is replaced is touched by one edit.
        if next_start < end or ((start, end) == (next_start, next_end) and start < end):
            raise ToolError(f"two edits change line {next_start + 1}: make them one")


def _with_ends(new: Sequence[str], lines: Sequence[str], start: int, end: int) -> list[str]:
    """New lines with the line end of the replaced ones, else of the line before, else after."""
    beside = [*lines[start:end][:1], *lines[max(0, start - 1) : start], *lines[end : end + 1]]
    ending = next(filter(None, map(line_end, beside)), "\n")
    return [line + ending for line in new]


def _end_like(lines: list[str], before: str) -> str:
    """The lines as one text, each with an end; the last one as the last one of `before` was."""
    if not lines:
        return ""
    whole = [line if line_end(line) else f"{line}{_common_end(lines)}" for line in lines]
    if before and not before.endswith("\n"):
        whole[-1] = without_end(whole[-1])
    return "".join(whole)


def _common_end(lines: Sequence[str]) -> str:
    return next(filter(None, map(line_end, lines)), "\n")
