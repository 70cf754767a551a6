"""What a tool is about to change is kept first, so that it can be looked at and undone.

Files that git ignores are made by programs that can make them again, and files of more than 10 MiB
would soon be all that there is room for: both are left out, and the result of the call says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.tools.output import Head
from coding_agent.tools.process import run_process
from coding_agent.tools.toolset import ToolEnv
from lemon_agent import ToolError
from lemon_core.checkpoint_errors import CheckpointError
from lemon_core.checkpoint_files import FILE_MAX_BYTES
from lemon_core.checkpoints import CheckpointCause

GIT_TIMEOUT_MS: Final = 5_000


async def keep_before(env: ToolEnv, tool: str, paths: Sequence[Path]) -> dict[str, object]:
    """Make a checkpoint of the resolved `paths`; what the result's details say about it.

    Raises `ToolError` when it cannot be made: then nothing may be changed.
    """
    ignored = await _ignored(env, [path for path in paths if path.exists()])
    left_out = {path for path in paths if path in ignored or _is_large(path)}
    kept = [path for path in paths if path not in left_out]
    about: dict[str, object] = {}
    if left_out:
        about["checkpoint_left_out"] = sorted(map(env.guard.shown, left_out))
    if not kept:
        return about
    run = env.identity
    cause = CheckpointCause(run.run_id, run.session_key, run.agent_id, tool=tool)
    try:
        made = await env.shared.checkpoints.create_filesystem(
            run.session_id,
            map(str, kept),
            str(env.guard.cwd),
            workspace=env.guard.workspace,
            cause=cause,
        )
    except CheckpointError as exc:
        raise ToolError(
            f"nothing was changed: what is there cannot be kept for undoing ({exc})"
        ) from exc
    return {"checkpoint_id": made.id, "checkpoint_kind": made.kind, **about}


def _is_large(path: Path) -> bool:
    try:
        return path.lstat().st_size > FILE_MAX_BYTES
    except OSError:
        return False


async def _ignored(env: ToolEnv, paths: Sequence[Path]) -> frozenset[Path]:
    """Those of `paths` that git ignores; without git, or outside a repository, there are none."""
    if not await anyio.to_thread.run_sync(_any_in_repository, {path.parent for path in paths}):
        return frozenset()
    found: set[Path] = set()
    for path in paths:
        try:
            ending = await run_process(
                # A repository's own settings must not start a program of its choice.
                ["git", "-c", "core.fsmonitor=false", "check-ignore", "-q", "--", path.name],
                cwd=path.parent,
                environ={**env.environ, "GIT_OPTIONAL_LOCKS": "0"},
                timeout_ms=GIT_TIMEOUT_MS,
                stdout=Head(0).take,
            )
        except OSError:  # there is no git
            return frozenset()
        if ending.exit_code == 0:
            found.add(path)
    return frozenset(found)


def _any_in_repository(folders: set[Path]) -> bool:
    above = {folder for start in folders for folder in (start, *start.parents)}
    return any(os.path.lexists(folder / ".git") for folder in above)
