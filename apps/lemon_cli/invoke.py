"""Calls a command's Typer app and turns whatever happens into an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import cast

import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_core.commands import CommandContext, CommandSpec
from lemon_core.errors import LemonError
from lemon_core.profiles import app_of, load_target


def invoke(spec: CommandSpec, arguments: list[str], context: CommandContext) -> int:
    """The exit code of one command; errors are one line on stderr each."""
    try:
        target = load_target(spec.target)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != app_of(spec.target):
            raise
        print(f"lemon: {spec.name} is not part of this installation", file=sys.stderr)
        return ExitCode.FAILED
    command = typer.main.get_command(cast(typer.Typer, target))
    try:
        result = command.main(
            arguments, prog_name=f"lemon {spec.name}", standalone_mode=False, obj=context
        )
    except typer.TyperException as exc:
        # Only wrong arguments raise it here; handlers raise CliError.
        hint = f"lemon {spec.name} --help tells more"
        print(f"lemon {spec.name}: {exc.format_message()} ({hint})", file=sys.stderr)
        return exc.exit_code
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except CliError as exc:
        _report(str(exc), context)
        return exc.exit_code
    except (LemonError, OSError) as exc:
        _report(str(exc), context)
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK


def _report(message: str, context: CommandContext) -> None:
    for line in message.splitlines() or ["failed"]:
        print(f"lemon: {line}", file=sys.stderr)
    if context.environ.get("LEMON_DEBUG") == "1":
        traceback.print_exc()
