"""`lemon workspace`: the files in which the assistant keeps who it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lemon_core.cli.base import command_app, command_context

app = command_app("Look after the assistant's own files.")


@app.callback()
def workspace() -> None:
    """Look after the assistant's own files."""


@app.command()
def init(
    ctx: typer.Context,
    workspace_dir: Annotated[
        Path | None,
        typer.Option(help="The folder (default: `workspace` among the agent's own files)."),
    ] = None,
) -> int:
    """Write what is missing of the assistant's files; what is there stays as it is."""
    from lemon_agent.errors import AgentError
    from lemon_agent.workspace.home import ensure_workspace

    context = command_context(ctx)
    folder = (
        context.paths.agent_dir(context.environ) / "workspace"
        if workspace_dir is None
        else context.cwd / workspace_dir.expanduser()
    )
    try:
        created = ensure_workspace(folder)
    except OSError as exc:
        raise AgentError(f"{folder}: cannot be written: {exc.strerror or exc}") from exc
    for name in created:
        print(f"Wrote {folder / name}")
    if not created:
        print(f"Nothing is missing in {folder}.")
    return 0
