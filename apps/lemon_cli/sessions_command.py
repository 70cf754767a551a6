"""`lemon sessions`: the conversations there are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import anyio
import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.session_name import session_key_of, session_word
from lemon_cli.work_access import open_reader, open_server
from lemon_core.cli.base import command_app, command_context, confirmed, note, print_json
from lemon_core.commands import CommandContext

app = command_app("List, show, reset and set up conversations.")

Session = Annotated[str, typer.Argument(help="A word (see lemon run --session), or a key.")]
Agent = Annotated[str | None, typer.Option("--agent", help="The agent of a session's word.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_sessions(
    ctx: typer.Context,
    agent: Annotated[str | None, typer.Option("--agent", help="Of this agent only.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those with a run.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 20,
    as_json: Json = False,
) -> int:
    """List sessions, the one used last first."""
    return anyio.run(_list, command_context(ctx), agent, active, limit, as_json)


@app.command("show")
def show_session(
    ctx: typer.Context,
    session: Session,
    agent: Agent = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=50, help="How many runs.")] = 10,
    full: Annotated[bool, typer.Option("--full", help="With the answers of the runs.")] = False,
    as_json: Json = False,
) -> int:
    """Show a session, its choices and its recent runs."""
    key = session_key_of(session, agent)
    return anyio.run(_show, command_context(ctx), key, limit, full, as_json)


@app.command("reset")
def reset_session(
    ctx: typer.Context,
    session: Session,
    agent: Agent = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Start a session over: end its runs, and forget its history, policy and choices."""
    key = session_key_of(session, agent)
    return anyio.run(_reset, command_context(ctx), key, yes)


@app.command("set")
def set_session(
    ctx: typer.Context,
    session: Session,
    agent: Agent = None,
    model: Annotated[
        str | None, typer.Option("--model", help='Its model; "" takes the choice back.')
    ] = None,
    thinking: Annotated[
        str | None, typer.Option("--thinking", help='How hard it thinks; "" takes it back.')
    ] = None,
    as_json: Json = False,
) -> int:
    """Set the model and the thinking level that a session keeps."""
    from lemon_core.runs import THINKING_LEVELS

    if model is None and thinking is None:
        raise CliError("nothing to set: give --model or --thinking", ExitCode.USAGE)
    if thinking and thinking not in THINKING_LEVELS:
        raise CliError(
            f"--thinking {thinking!r}: use one of {', '.join(THINKING_LEVELS)}", ExitCode.USAGE
        )
    key = session_key_of(session, agent)
    return anyio.run(_set, command_context(ctx), key, model, thinking, as_json)


async def _list(
    context: CommandContext, agent: str | None, active: bool, limit: int, as_json: bool
) -> int:
    from lemon_cli.work_text import session_lines
    from lemon_core.ids import now_ms

    async with open_reader(context) as reader:
        # The agent is chosen here, so more may be needed than are shown.
        found = await reader.list_sessions(active_only=active, limit=None if agent else limit)
    found = [info for info in found if agent in (None, info.agent_id)][:limit]
    if as_json:
        print_json({"sessions": [asdict(info) for info in found]})
    elif found:
        print(session_lines(found, now_ms()))
    else:
        note("no sessions")
    return ExitCode.OK


async def _show(context: CommandContext, key: str, limit: int, full: bool, as_json: bool) -> int:
    from lemon_cli.work_text import session_json, session_text
    from lemon_core.ids import now_ms

    async with open_reader(context) as reader:
        view = await reader.get_session(key, limit)
    if view is None:
        raise CliError(f"no session {session_word(key)} is known: lemon sessions list shows them")
    if as_json:
        print_json(session_json(view))
    else:
        print(session_text(view, now_ms(), full=full))
    return ExitCode.OK


async def _reset(context: CommandContext, key: str, yes: bool) -> int:
    async with open_server(context) as client:
        word = session_word(key)
        if await client.get_session(key, 1) is None:
            raise CliError(f"no session {word} is known: lemon sessions list shows them")
        question = f"Forget everything of session {word}, and end what it is doing?"
        if not await anyio.to_thread.run_sync(lambda: confirmed(question, yes=yes)):
            return ExitCode.FAILED
        await client.reset_session(key)
    note(f"session {word} starts over")
    return ExitCode.OK


async def _set(
    context: CommandContext, key: str, model: str | None, thinking: str | None, as_json: bool
) -> int:
    from lemon_core.store.wrappers import UNSET

    async with open_server(context) as client:
        settings = await client.patch_session(
            key,
            model=UNSET if model is None else model or None,
            thinking_level=UNSET if thinking is None else thinking or None,
        )
    chosen = {"model": settings.model, "thinking_level": settings.thinking_level}
    if as_json:
        print_json({"session_key": key, **chosen})
    else:
        shown = [value or "not set" for value in chosen.values()]
        note(f"session {session_word(key)}: model {shown[0]}, thinking {shown[1]}")
    return ExitCode.OK
