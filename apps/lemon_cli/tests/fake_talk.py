"""A `chat` that sets Lemon up like the real one, and says that it was called."""

from __future__ import annotations

import typer

from lemon_cli.first_run import ensure_set_up
from lemon_core.cli.base import command_context

app = typer.Typer()


@app.command()
def chat(ctx: typer.Context) -> int:
    if not ensure_set_up(command_context(ctx)):
        return 1
    print("chatting")
    return 0
