"""`read` and `write`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.own_files import is_recent_note
from coding_agent.tools.anchors import tag_of
from coding_agent.tools.file_access import check_writable, read_file, write_file
from coding_agent.tools.snapshots import keep_before
from coding_agent.tools.text_file import BOM
from coding_agent.tools.toolset import (
    ToolDef,
    ToolEnv,
    bool_param,
    int_param,
    schema,
    text_param,
)
from coding_agent.workspace import require_size
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_ai import ImageContent
from lemon_ai.types import ImageMimeType

MAX_LINES: Final = 2_000
MAX_BYTES: Final = 50 * 1_024
MAX_IMAGE_BYTES: Final = 8 * 1_024 * 1_024
IMAGE_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp"})


async def _read(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    path = env.guard.resolve(call.params["path"])
    shown = env.guard.shown(path)
    if is_recent_note(call.params["path"], env.shared.now_ms()) and not path.exists():
        return AgentToolResult(details={"path": shown, "missing_optional": True})
    trust = env.guard.trust(path)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        image = await anyio.to_thread.run_sync(_show_image, path, shown)
        return replace(image, trust=trust)
    offset, limit = call.params.get("offset"), call.params.get("limit")
    style = hashed_row if call.params.get("hashlines") else plain_row
    page = await anyio.to_thread.run_sync(_show_text, path, shown, offset, limit, style)
    return replace(page, trust=trust)


async def _write(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    path = env.guard.resolve(call.params["path"], writing=True)
    shown = env.guard.shown(path)
    content = call.params["content"].encode()
    require_size(content, env.policy.max_file_size, shown)
    # Before the checkpoint: what cannot be written needs none.
    await anyio.to_thread.run_sync(check_writable, path, shown)
    kept = await keep_before(env, "write", [path])
    await anyio.to_thread.run_sync(write_file, path, content, shown)
    text = f"Successfully wrote {len(content)} bytes to {shown}"
    details = {"path": shown, "bytes_written": len(content), **kept}
    return AgentToolResult.of_text(text, details=details)


READ: Final = ToolDef(
    name="read",
    description=(
        "Read a file. Text comes as numbered lines, at most 2000 lines or 50 KB at a time; go on "
        "with offset. Images (jpg, png, gif, webp) are shown."
    ),
    parameters=schema(
        ("path",),
        path=text_param("File, relative to the working directory or absolute."),
        offset=int_param("First line to show, from 1."),
        limit=int_param("How many lines to show."),
        hashlines=bool_param("Number lines as N#XX, the anchors of hashline_edit."),
    ),
    execute=_read,
)

WRITE: Final = ToolDef(
    name="write",
    description="Create a file, or replace it as a whole. Missing folders are created.",
    parameters=schema(
        ("path", "content"),
        path=text_param("File, relative to the working directory or absolute."),
        content=text_param("The whole new content."),
    ),
    execute=_write,
    classes=frozenset({"dangerous"}),
    exclusive=True,
)


@dataclass(frozen=True, slots=True)
class Page:
    """The shown part of a text file; `truncation` says which limit ended it."""

    text: str
    total_lines: int
    start_line: int
    lines_shown: int
    truncation: str | None


RowStyle = Callable[[int, str], str]


def plain_row(number: int, line: str) -> str:
    """A numbered line."""
    return f"{number}: {line}"


def hashed_row(number: int, line: str) -> str:
    """A line with its anchor."""
    return f"{tag_of(number, line)}:{line}"


def paginate(text: str, offset: int | None, limit: int | None, style: RowStyle = plain_row) -> Page:
    """Numbered lines from `offset` on, within the limits; a notice says where to go on.

    At least one line is shown, cut when it alone is too long. An offset below 1 is 1 and a limit
    below 1 is ignored. Lines end at line feeds only, as grep counts them.
    """
    lines = split_lines(text)
    start = max(offset or 1, 1)
    if start > max(len(lines), 1):
        raise ToolError(f"offset {start} is past the end: the file has {len(lines)} lines")
    wanted = lines[start - 1 :][: limit if limit and limit > 0 else None]
    rows, truncation = _rows(wanted, start, style)
    last = start + len(rows) - 1
    if last < len(lines):
        more = f"[Showing lines {start}-{last} of {len(lines)}. Use offset={last + 1} to continue.]"
        rows.append(more)
    return Page("\n".join(rows), len(lines), start, last - start + 1, truncation)


def split_lines(text: str) -> list[str]:
    """The lines without their ends; a line feed at the end begins no further line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _rows(lines: list[str], start: int, style: RowStyle) -> tuple[list[str], str | None]:
    rows: list[str] = []
    size = 0
    for number, line in enumerate(lines, start):
        row = style(number, line)
        size += len(row.encode()) + 1
        too_many, too_long = len(rows) >= MAX_LINES, size > MAX_BYTES
        if too_long and not rows:
            cut = row.encode()[:MAX_BYTES].decode(errors="ignore")
            return [f"{cut} [line cut: it has {len(line)} characters]"], "max_bytes"
        if too_many or too_long:
            both = too_many and too_long
            return rows, "lines_and_bytes" if both else "max_lines" if too_many else "max_bytes"
        rows.append(row)
    return rows, None


def _show_text(
    path: Path, shown: str, offset: int | None, limit: int | None, style: RowStyle
) -> AgentToolResult:
    data = read_file(path, shown)
    page = paginate(data.removeprefix(BOM).decode(errors="replace"), offset, limit, style)
    details = {
        "path": shown,
        "total_lines": page.total_lines,
        "start_line": page.start_line,
        "lines_shown": page.lines_shown,
        "truncation": page.truncation,
    }
    return AgentToolResult.of_text(page.text or "(the file is empty)", details=details)


def _show_image(path: Path, shown: str) -> AgentToolResult:
    data = read_file(path, shown, max_bytes=MAX_IMAGE_BYTES)
    mime = image_type(data)
    if mime is None:
        # A provider refuses what it cannot decode, and would do so in every later turn.
        raise ToolError(f"{shown} does not hold an image of the kinds png, jpeg, gif or webp")
    image = ImageContent(data=base64.b64encode(data).decode(), mime_type=mime)
    return AgentToolResult((image,), details={"path": shown, "mime_type": mime})


def image_type(data: bytes) -> ImageMimeType | None:
    """The type that the first bytes tell, whatever the file is called."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None
