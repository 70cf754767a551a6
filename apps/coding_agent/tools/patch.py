"""`patch`: several files in one call, all of them or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.tools.file_access import delete_file, read_file, write_file
from coding_agent.tools.patch_text import FileChange, apply_hunks, parse_patch
from coding_agent.tools.snapshots import keep_before
from coding_agent.tools.text_file import TextFile
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.workspace import require_size
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_PATH_BYTES: Final = 4_096
MAX_FILE_BYTES: Final = 10 * 1_024 * 1_024


async def _patch(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    changes = parse_patch(call.params["patch_text"])
    steps = await anyio.to_thread.run_sync(plan_steps, env, changes)
    kept = await keep_before(env, "patch", [step.path for step in steps])
    await anyio.to_thread.run_sync(apply_steps, steps)
    additions = sum(change.additions for change in changes)
    removals = sum(change.removals for change in changes)
    text = (
        f"Patch applied successfully. {len(changes)} files changed, "
        f"{additions} additions, {removals} removals"
    )
    details = {
        "files": [step.shown for step in steps],
        "additions": additions,
        "removals": removals,
        **kept,
    }
    return AgentToolResult.of_text(text, details=details)


PATCH: Final = ToolDef(
    name="patch",
    description=(
        "Change several files at once, all or none. Format: '*** Begin Patch', then per file "
        "'*** Add File: p' with + lines, '*** Delete File: p', or '*** Update File: p' (with "
        "'*** Move to: q') and hunks of '@@' and lines beginning with ' ', '-' or '+', then "
        "'*** End Patch'. Context must match exactly."
    ),
    parameters=schema(("patch_text",), patch_text=text_param("The patch.")),
    execute=_patch,
    classes=frozenset({"dangerous"}),
    exclusive=True,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What one path holds before and after; None is no file."""

    path: Path
    shown: str
    before: bytes | None
    after: bytes | None


def plan_steps(env: ToolEnv, changes: Sequence[FileChange]) -> list[Step]:
    """What has to be written and deleted; raises `ToolError` for the first thing that is wrong."""
    steps: list[Step] = []
    for change in changes:
        path, shown = _target(env, change.path)
        before = _content(path, shown)
        if change.kind == "add":
            if before is not None:
                raise ToolError(f"{shown} is there already: update it")
            content = "".join(f"{line}\n" for line in change.added).encode()
            steps.append(Step(path, shown, None, content))
            continue
        if before is None:
            raise ToolError(f"{shown}: no such file")
        if change.kind == "delete":
            steps.append(Step(path, shown, before, None))
            continue
        steps += _update(env, change, Step(path, shown, before, None))
    for step in steps:
        if step.after is not None:
            require_size(step.after, env.policy.max_file_size, step.shown)
    if len({step.path for step in steps}) < len(steps):
        raise ToolError("the patch names a file twice: make it one change")
    return steps


def apply_steps(steps: Sequence[Step]) -> None:
    """Do all steps; when one fails, those before it are taken back, and `ToolError` is raised."""
    done: list[Step] = []
    try:
        for step in steps:
            _do(step.path, step.shown, step.before, step.after)
            done.append(step)
    except BaseException:  # whatever ended it, half a patch must not stay
        for step in reversed(done):
            try:
                _do(step.path, step.shown, step.after, step.before)
            # One file that cannot be taken back must not keep the others from it.
            except (ToolError, OSError) as exc:
                log.error("patch.not_taken_back", path=str(step.path), reason=str(exc))
        raise


def _update(env: ToolEnv, change: FileChange, here: Step) -> list[Step]:
    assert here.before is not None
    after = here.before
    if change.hunks:
        file = TextFile.decode(here.before, here.shown)
        after = file.encode(apply_hunks(file.text, change))
    if change.move_to is None:
        return [Step(here.path, here.shown, here.before, after)]
    target, shown = _target(env, change.move_to)
    if _content(target, shown) is not None:
        raise ToolError(f"{shown} is there already: nothing can be moved to it")
    # The new place first: should the second step fail, nothing is lost meanwhile.
    return [Step(target, shown, None, after), Step(here.path, here.shown, here.before, None)]


def _do(path: Path, shown: str, before: bytes | None, after: bytes | None) -> None:
    if after is None:
        if _content(path, shown) != before:
            raise ToolError(f"{shown} was changed by somebody else meanwhile: read it again")
        delete_file(path, shown)
    elif before is None and _content(path, shown) is not None:
        raise ToolError(f"{shown} appeared meanwhile: read it")
    else:
        write_file(path, after, shown, expected=before)


def _target(env: ToolEnv, text: str) -> tuple[Path, str]:
    """The path that a patch means: stricter than other tools, since it may delete."""
    if not text or "\0" in text or "//" in text or len(text.encode()) > MAX_PATH_BYTES:
        raise ToolError(f"{text[:80]!r} cannot be used as a path of a patch")
    plain = Path(os.path.normpath(env.guard.cwd / text))
    if not os.path.isabs(text) and not plain.is_relative_to(env.guard.cwd):
        raise ToolError(f"{text} leaves the working directory: give the whole path")
    path = env.guard.resolve(str(plain), writing=True)
    if path != plain:
        raise ToolError(f"{text} is a link, or lies behind one: name the file itself")
    return path, env.guard.shown(path)


def _content(path: Path, shown: str) -> bytes | None:
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise ToolError(f"{shown} is a directory")
        if not stat.S_ISREG(mode):
            raise ToolError(f"{shown} is not a regular file")
        return read_file(path, shown, max_bytes=MAX_FILE_BYTES)
    return None
