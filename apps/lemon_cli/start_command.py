"""`lemon start`: the server in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.examples import examples
from lemon_core.cli.base import command_context
from lemon_core.commands import CommandContext
from lemon_core.profiles import PROFILE_VARIABLE

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=examples("lemon start", "lemon start --debug"))
def start(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Option("--profile", help="The parts to run, such as runtime_min.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log much more.")] = False,
    log_file: Annotated[
        Path | None,
        typer.Option("--log-file", help="Print into this file; old ones stay beside a full one."),
    ] = None,
) -> int:
    """Run the Lemon server in the foreground: gateway and router in one process.

    It listens on Unix sockets of the state directory and on loopback for health. Ctrl-C or SIGTERM
    ends live runs and stops it within 5 seconds.
    """
    import anyio

    from lemon_cli.lifecycle import tighten
    from lemon_cli.output_file import OutputFile
    from lemon_cli.serving import serve

    context = command_context(ctx)
    _with_profile(context, profile)
    if debug:
        context = replace(context, environ={**context.environ, "LEMON_DEBUG": "1"})
    output = None if log_file is None else OutputFile(context.cwd / log_file.expanduser())
    if output is not None:
        output.take()
    tighten(context.paths)
    return anyio.run(serve, context, output)


def _with_profile(context: CommandContext, name: str | None) -> None:
    """Go on when this is the profile; else begin again as a program with that one."""
    if name is None or name == context.profile.name:
        return
    if context.environ.get(PROFILE_VARIABLE) == name:
        raise CliError(
            f"this installation has no profile {name!r}; this one is {context.profile.name}",
            ExitCode.USAGE,
        )
    from lemon_cli.lifecycle import launcher

    # Which components there are is settled before a command runs.
    os.execve(
        sys.executable,
        [*launcher(context.paths), *sys.argv[1:]],
        {**context.environ, PROFILE_VARIABLE: name},
    )
