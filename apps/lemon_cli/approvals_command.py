"""`lemon approvals`: what runs ask before they do it."""

from __future__ import annotations

from typing import Annotated, Final

import anyio
import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.work_access import open_server
from lemon_core.cli.base import command_app, command_context, note, print_json
from lemon_core.commands import CommandContext

app = command_app("List and answer what runs ask before they do it.")

SCOPES: Final = ("once", "session", "agent", "global")

Approval = Annotated[str, typer.Argument(help="The id, as lemon approvals list shows it.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_approvals(ctx: typer.Context, as_json: Json = False) -> int:
    """List the questions that wait for an answer, oldest first."""
    return anyio.run(_list, command_context(ctx), as_json)


@app.command("allow")
def allow(
    ctx: typer.Context,
    approval: Approval,
    scope: Annotated[
        str, typer.Option("--scope", help=f"For how long: {', '.join(SCOPES)}.")
    ] = "once",
) -> int:
    """Let it be done: this once, or from now on for its session, its agent or everybody."""
    if scope not in SCOPES:
        raise CliError(f"--scope {scope!r}: use one of {', '.join(SCOPES)}", ExitCode.USAGE)
    return anyio.run(_answer, command_context(ctx), approval, f"approve_{scope}")


@app.command("deny")
def deny(ctx: typer.Context, approval: Approval) -> int:
    """Have it left undone; the run goes on without it."""
    return anyio.run(_answer, command_context(ctx), approval, "deny")


async def _list(context: CommandContext, as_json: bool) -> int:
    from lemon_cli.work_text import question_lines
    from lemon_core.ids import now_ms

    async with open_server(context) as client:
        found = await client.list_approvals()
    if as_json:
        print_json({"approvals": [question.model_dump(mode="json") for question in found]})
    elif found:
        print(question_lines(found, now_ms()))
    else:
        note("nothing waits for an answer")
    return ExitCode.OK


async def _answer(context: CommandContext, approval_id: str, decision: str) -> int:
    async with open_server(context) as client:
        resolved = await client.resolve_approval(approval_id, decision)
    if not resolved:
        raise CliError(f"approval {approval_id} is not open: answered, expired or unknown")
    note(f"{approval_id} is {'denied' if decision == 'deny' else 'allowed'}")
    return ExitCode.OK
