"""`lemon runs`: what is going on, what waits and what was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.session_name import session_key_of
from lemon_cli.work_access import open_reader, open_server
from lemon_core.cli.base import command_app, command_context, note, print_json
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.bridges import SteerMode

app = command_app("List, show, abort and steer runs.")

STATES: Final = (
    "accepted", "queued", "started", "submitted", "completed", "failed", "aborted", "absorbed"
)  # fmt: skip
LIVE: Final = STATES[:4]
MODES: Final[dict[str, SteerMode]] = {"steer": "steer", "redirect": "redirect"}

Run = Annotated[str, typer.Argument(help="The run's id, as lemon runs list shows it.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_runs(
    ctx: typer.Context,
    active: Annotated[bool, typer.Option("--active", help="Only those not over.")] = False,
    status: Annotated[
        list[str] | None, typer.Option("--status", help=f"{', '.join(STATES)}; repeatable.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Of this session only.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="The agent of the session.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 20,
    as_json: Json = False,
) -> int:
    """List runs, the newest first."""
    for word in status or ():
        if word not in STATES:
            raise CliError(f"--status {word!r}: use one of {', '.join(STATES)}", ExitCode.USAGE)
    key = None if session is None else session_key_of(session, agent)
    states = [*(LIVE if active else ()), *(status or ())]
    return anyio.run(_list, command_context(ctx), key, states, limit, as_json)


@app.command("show")
def show_run(ctx: typer.Context, run: Run, as_json: Json = False) -> int:
    """Show a run: where it stands, and how it ended."""
    return anyio.run(_show, command_context(ctx), run, as_json)


@app.command("abort")
def abort_run(ctx: typer.Context, run: Run) -> int:
    """End a run: a waiting one never starts, a working one is interrupted."""
    return anyio.run(_abort, command_context(ctx), run)


@app.command("steer")
def steer_run(
    ctx: typer.Context,
    run: Run,
    text: Annotated[list[str], typer.Argument(help="What the run should hear.")],
    mode: Annotated[
        str, typer.Option("--mode", help="steer adds to what it does, redirect replaces it.")
    ] = "steer",
    as_json: Json = False,
) -> int:
    """Give a working run more input, which it takes at its next step."""
    if mode not in MODES:
        raise CliError(f"--mode {mode!r}: use one of {', '.join(MODES)}", ExitCode.USAGE)
    words = " ".join(text)
    if not words.strip():
        raise CliError("the text is empty", ExitCode.USAGE)
    return anyio.run(_steer, command_context(ctx), run, words, MODES[mode], as_json)


async def _list(
    context: CommandContext, key: str | None, states: list[str], limit: int, as_json: bool
) -> int:
    from lemon_cli.work_text import run_json, run_lines
    from lemon_core.ids import now_ms

    async with open_reader(context) as reader:
        found = await reader.list_runs(key, states, limit)
    if as_json:
        print_json({"runs": [run_json(run) for run in found]})
    elif found:
        print(run_lines(found, now_ms()))
    else:
        note("no runs")
    return ExitCode.OK


async def _show(context: CommandContext, run_id: str, as_json: bool) -> int:
    from lemon_cli.work_text import run_json, run_text
    from lemon_core.ids import now_ms

    async with open_reader(context) as reader:
        run = await reader.get_run(run_id)
    if run is None:
        raise _unknown(run_id)
    if as_json:
        print_json(run_json(run))
    else:
        print(run_text(run, now_ms()))
    return ExitCode.OK


async def _abort(context: CommandContext, run_id: str) -> int:
    async with open_server(context) as client:
        run = await client.get_run(run_id)
        if run is None:
            raise _unknown(run_id)
        if run.state not in LIVE:
            note(f"{run_id} is over already: {run.state}")
            return ExitCode.OK
        await client.abort_run(run_id, "user_requested")
    note(f"{run_id} is told to end" if run.state == "submitted" else f"{run_id} is dropped")
    return ExitCode.OK


async def _steer(
    context: CommandContext, run_id: str, text: str, mode: SteerMode, as_json: bool
) -> int:
    from lemon_core.ids import run_id as new_run_id

    async with open_server(context) as client:
        if await client.get_run(run_id) is None:
            raise _unknown(run_id)
        outcome = await client.steer_run(run_id, text, mode, new_run_id())
    if as_json:
        print_json({"run_id": run_id, "accepted": outcome.accepted, "reason": outcome.reason})
    elif outcome.accepted:
        note(f"{run_id} takes it at its next step")
    else:
        note(f"{run_id} did not take it: {(outcome.reason or 'refused').replace('_', ' ')}")
    return ExitCode.OK if outcome.accepted else ExitCode.FAILED


def _unknown(run_id: str) -> CliError:
    return CliError(f"no run {run_id} is known: lemon runs list shows them")
