"""`edit`: replace one piece of text, which must be the only one of its kind in the file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.tools.change_diff import span_diff
from coding_agent.tools.file_access import read_file, write_file
from coding_agent.tools.fuzzy import find
from coding_agent.tools.snapshots import keep_before
from coding_agent.tools.text_file import TextFile
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.workspace import require_size
from lemon_agent import AgentToolResult, ToolCallContext, ToolError


async def _edit(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    path = env.guard.resolve(call.params["path"], writing=True)
    old, new = call.params["old_text"], call.params["new_text"]
    return await _apply(env, path, old, new)


EDIT: Final = ToolDef(
    name="edit",
    description=(
        "Replace one piece of text in a file. old_text must occur exactly once: give enough lines "
        "around the change. Line ends and byte order mark are kept."
    ),
    parameters=schema(
        ("path", "old_text", "new_text"),
        path=text_param("File, relative to the working directory or absolute."),
        old_text=text_param("The text to replace, as it is in the file."),
        new_text=text_param("The text to put in its place."),
    ),
    execute=_edit,
    classes=frozenset({"dangerous"}),
    exclusive=True,
)


@dataclass(frozen=True, slots=True)
class Edited:
    """The new content of a file, and what changed in it."""

    content: bytes
    diff: str
    first_changed_line: int


def replace_once(data: bytes, old: str, new: str, shown: str) -> Edited:
    """`data` with the one occurrence of `old` replaced; raises `ToolError` for none or several.

    An exact occurrence counts before one that differs only in what `fuzzy` overlooks. New lines end
    as those that they replace do, whatever `old` and `new` use; what is not UTF-8 text refuses the
    edit rather than being damaged.
    """
    file = TextFile.decode(data, shown)
    text, crlf = file.text, file.all_crlf
    if crlf:
        text, old, new = (part.replace("\r\n", "\n") for part in (text, old, new))
    start, end = _only_place(text, old, shown)
    if not crlf and _ends_in_crlf(text, start):
        new = new.replace("\r\n", "\n").replace("\n", "\r\n")
    if text[start:end] == new:
        raise ToolError(f"No changes made to {shown}: new_text equals what is there")
    after = text[:start] + new + text[end:]
    diff, line = span_diff(text, after, start, end, len(new))
    return Edited(file.encode(after.replace("\n", "\r\n") if crlf else after), diff, line)


async def _apply(env: ToolEnv, path: Path, old: str, new: str) -> AgentToolResult:
    shown = env.guard.shown(path)
    data = await anyio.to_thread.run_sync(read_file, path, shown)
    edited = await anyio.to_thread.run_sync(replace_once, data, old, new, shown)
    require_size(edited.content, env.policy.max_file_size, shown)
    kept = await keep_before(env, "edit", [path])
    await anyio.to_thread.run_sync(partial(write_file, expected=data), path, edited.content, shown)
    details = {
        "path": shown,
        "diff": edited.diff,
        "first_changed_line": edited.first_changed_line,
        **kept,
    }
    return AgentToolResult.of_text(f"Edited {shown}\n{edited.diff}", details=details)


def _ends_in_crlf(text: str, start: int) -> bool:
    """Whether the line at `start`, of a file that has both kinds of line ends, ends in CRLF."""
    end = text.find("\n", start)
    return end > 0 and text[end - 1] == "\r"


def _only_place(text: str, old: str, shown: str) -> tuple[int, int]:
    if not old:
        raise ToolError("old_text is empty: use write to create a file")
    found = find(text, old)
    if found.count == 0:
        raise ToolError(f"old_text was not found in {shown}: read the file and copy it exactly")
    if found.count > 1:
        raise ToolError(
            f"Found {found.count} occurrences of old_text in {shown}: add lines around it"
        )
    return found.start, found.end
