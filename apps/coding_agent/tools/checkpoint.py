"""`checkpoint`: what files were before this conversation changed them, to look at and to undo."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.checkpoint_errors import CheckpointError
from lemon_core.checkpoint_folder import Checkpoint
from lemon_core.checkpoints import CheckpointCause

MAX_DIFF_CHARS: Final = 50_000
MAX_LISTED: Final = 100


async def _checkpoint(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    own = env.identity.session_id
    if call.params.get("session_id") not in (None, own):
        raise ToolError("only the checkpoints of this conversation can be used")
    try:
        return await _done(env, call, own)
    except CheckpointError as exc:
        raise ToolError(str(exc)) from exc


CHECKPOINT: Final = ToolDef(
    name="checkpoint",
    description=(
        "What files were before write, edit, hashline_edit and patch changed them: list the "
        "checkpoints of this conversation, see the diff since, restore or delete one."
    ),
    parameters=schema(
        ("action",),
        action={"type": "string", "enum": ["list", "diff", "restore", "delete"]},
        checkpoint_id=text_param("For all but list."),
        paths={"type": "array", "items": {"type": "string"}, "description": "Only these files."},
        session_id=text_param("This conversation's; may be left out."),
    ),
    execute=_checkpoint,
    classes=frozenset({"dangerous"}),
    exclusive=True,
)


async def _done(env: ToolEnv, call: ToolCallContext, session_id: str) -> AgentToolResult:
    store, params = env.shared.checkpoints, call.params
    if params["action"] == "list":
        return _listed(await store.list(session_id))
    if not params.get("checkpoint_id"):
        raise ToolError(f"{params['action']} needs checkpoint_id")
    header, _ = await store.get(params["checkpoint_id"])
    if header.session_id != session_id:
        raise ToolError(f"there is no checkpoint {header.id} in this conversation")
    run = env.identity
    cause = CheckpointCause(run.run_id, run.session_key, run.agent_id, tool="checkpoint")
    paths, details = params.get("paths"), {"checkpoint_id": header.id}
    match params["action"]:
        case "diff":
            changes = await store.diff_filesystem(header.id, paths)
            text = "\n".join(f"{c.path} ({c.change})\n{c.diff}" for c in changes)
            return AgentToolResult.of_text(cut_diff(text) or "No changes since.", details=details)
        case "restore":
            done = await store.restore_filesystem(
                header.id, paths, workspace=env.guard.workspace, cause=cause
            )
            count = len(done.restored) + len(done.deleted)
            names = ", ".join([*done.restored, *(f"{name} (deleted)" for name in done.deleted)])
            text = f"Restored {count} files: {names}"
            return AgentToolResult.of_text(text, details={**details, "restored_count": count})
        case _:
            await store.delete(header.id, cause)
            return AgentToolResult.of_text(f"Deleted {header.id}", details=details)


def cut_diff(text: str) -> str:
    """A diff that is not longer than what a tool may show."""
    if len(text) <= MAX_DIFF_CHARS:
        return text
    return f"{text[:MAX_DIFF_CHARS]}\n[cut: the diff has {len(text)} characters; name paths]"


def checkpoint_line(header: Checkpoint) -> str:
    """A checkpoint in one line."""
    made = datetime.fromtimestamp(header.created_at_ms / 1_000, UTC)
    names = ", ".join(header.paths[:5]) + (", …" if len(header.paths) > 5 else "")
    return f"{header.id}  {made:%Y-%m-%d %H:%M:%S}  {header.kind}  {names}".rstrip()


def _listed(headers: tuple[Checkpoint, ...]) -> AgentToolResult:
    lines = [checkpoint_line(header) for header in headers[:MAX_LISTED]]
    if len(headers) > MAX_LISTED:
        lines.append(f"[Showing the newest {MAX_LISTED} of {len(headers)}.]")
    text = "\n".join(lines) or "No checkpoints in this conversation."
    return AgentToolResult.of_text(text, details={"count": len(headers)})
