"""`edit`: replace one piece of text, which must be the only one of its kind in the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.tools.file_access import read_file, write_file
from coding_agent.tools.fuzzy import find
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.workspace import require_size
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

BOM: Final = b"\xef\xbb\xbf"
DIFF_CONTEXT: Final = 4


async def _edit(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    path = env.guard.resolve(call.params["path"], writing=True)
    old, new = call.params["old_text"], call.params["new_text"]
    return await anyio.to_thread.run_sync(_apply, env, path, old, new)


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

    An exact occurrence counts before one that differs only in what `fuzzy` overlooks. A file whose
    lines all end in CRLF is matched and written with CRLF, whatever `old` and `new` use; bytes that
    are not UTF-8 refuse the edit rather than being damaged.
    """
    bom = BOM if data.startswith(BOM) else b""
    try:
        text = data[len(bom) :].decode()
    except UnicodeDecodeError as exc:
        raise ToolError(f"{shown} is not UTF-8 text: change it with bash") from exc
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    if crlf:
        text, old, new = (part.replace("\r\n", "\n") for part in (text, old, new))
    start, end = _only_place(text, old, shown)
    if text[start:end] == new:
        raise ToolError(f"No changes made to {shown}: new_text equals what is there")
    after = text[:start] + new + text[end:]
    diff, line = _diff(text, after, start, end, len(new))
    written = after.replace("\n", "\r\n") if crlf else after
    return Edited(bom + written.encode(), diff, line)


def _apply(env: ToolEnv, path: Path, old: str, new: str) -> AgentToolResult:
    shown = env.guard.shown(path)
    edited = replace_once(read_file(path, shown), old, new, shown)
    require_size(edited.content, env.policy.max_file_size, shown)
    write_file(path, edited.content, shown)
    details = {
        "path": shown,
        "diff": edited.diff,
        "first_changed_line": edited.first_changed_line,
    }
    return AgentToolResult.of_text(f"Edited {shown}\n{edited.diff}", details=details)


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


def _diff(before: str, after: str, start: int, end: int, length: int) -> tuple[str, int]:
    """A unified diff of the one change, and the number of its first line.

    Only the lines around the change are looked at: a general diff of a large file takes seconds.
    """
    top = before.count("\n", 0, start)
    old = before.split("\n")
    new = after.split("\n")
    old_end = before.count("\n", 0, end) + 1
    new_end = after.count("\n", 0, start + length) + 1
    while top < min(old_end, new_end) and old[top] == new[top]:
        top += 1
    while top < min(old_end, new_end) and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    head = old[max(0, top - DIFF_CONTEXT) : top]
    # What follows the last line feed is no line.
    line_count = len(old) - (old[-1] == "")
    tail = old[old_end : min(old_end + DIFF_CONTEXT, line_count)]
    first = top - len(head) + 1
    kept = len(head) + len(tail)
    lines = [
        f"@@ -{first},{kept + old_end - top} +{first},{kept + new_end - top} @@",
        *(f" {line}" for line in head),
        *(f"-{line}" for line in old[top:old_end]),
        *(f"+{line}" for line in new[top:new_end]),
        *(f" {line}" for line in tail),
    ]
    return "\n".join(lines), top + 1
