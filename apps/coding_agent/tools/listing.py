"""`ls`: what is in a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, int_param, schema, text_param
from coding_agent.workspace import opened, printable
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

MAX_ENTRIES: Final = 500
DEFAULT_DEPTH: Final = 3
DEEPEST: Final = 64
MAX_COUNTED: Final = 20_000

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Options:
    """How to list; `depth` 1 stays in the folder itself."""

    depth: int = 1
    hidden: bool = False
    long: bool = False


async def _ls(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    params = call.params
    path = env.guard.resolve(params.get("path") or ".")
    depth = min(params.get("max_depth") or DEFAULT_DEPTH, DEEPEST) if params.get("recursive") else 1
    options = Options(depth, bool(params.get("all")), bool(params.get("long")))
    limit = params.get("max_entries") or MAX_ENTRIES
    return await anyio.to_thread.run_sync(_list, path, env.guard.shown(path), options, limit)


LS: Final = ToolDef(
    name="ls",
    description="List a folder: d for directories, - for files, l for links.",
    parameters=schema(
        path=text_param("Folder; the working directory when left out."),
        all=bool_param("Show hidden entries too."),
        long=bool_param("Show mode, size in bytes and time of change (UTC)."),
        recursive=bool_param("Go into subfolders."),
        max_depth=int_param("How deep to go with recursive; 3 when left out.", minimum=1),
        max_entries=int_param("How many entries to show; 500 when left out.", minimum=1),
    ),
    execute=_ls,
)


def _list(path: Path, shown: str, options: Options, limit: int) -> AgentToolResult:
    with closing(list_folder(path, shown, options)) as entries:
        lines = list(islice(entries, limit))
        # A tree without end is not counted to its end.
        total = len(lines) + sum(1 for _ in islice(entries, MAX_COUNTED))
    counted = f"{total} or more" if total >= limit + MAX_COUNTED else str(total)
    footer = f"{total} {'entry' if total == 1 else 'entries'}"
    if total > limit:
        footer = f"[Showing {limit} of {counted} entries. Limit: {limit}]"
    text = "\n".join([f"Directory: {shown}", *lines, footer])
    return AgentToolResult.of_text(text, details={"path": shown, "entries": total})


def list_folder(path: Path, shown: str, options: Options) -> Generator[str, None, None]:
    """The lines of a listing, directories first; subfolders that cannot be read are skipped."""
    try:
        with opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise ToolError(f"{shown} is a file: use read")
            os.scandir(fd).close()
            folder = os.dup(fd)
    except FileNotFoundError as exc:
        raise ToolError(f"{shown}: no such folder") from exc
    except OSError as exc:
        raise ToolError(f"{shown}: cannot be listed ({exc.strerror})") from exc
    return _walk(folder, "", options, options.depth)


def _walk(folder: int, prefix: str, options: Options, depth: int) -> Generator[str, None, None]:
    """The lines of an open folder, which is closed at the end.

    Everything is reached through open folders and never through a link: a loop cannot trap the
    walk, and a link put in its way leads nowhere.
    """
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if options.hidden or not entry.name.startswith(".")]
        found.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
        for entry in found:
            is_folder = entry.is_dir(follow_symlinks=False)
            name = f"{prefix}{printable(entry.name)}"
            facts = _facts(entry) if options.long else ""
            yield f"{_kind(entry)} {facts}{name}{'/' if is_folder else ''}"
            if is_folder and depth > 1:
                with suppress(OSError):
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                    yield from _walk(inner, f"{name}/", options, depth - 1)
    finally:
        os.close(folder)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "l"
    if entry.is_dir():
        return "d"
    return "-" if entry.is_file() else "?"


def _facts(entry: os.DirEntry[str]) -> str:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return ""
    changed = datetime.fromtimestamp(info.st_mtime, UTC)
    return f"{stat.filemode(info.st_mode)[1:]} {info.st_size} {changed:%Y-%m-%d %H:%M} "
