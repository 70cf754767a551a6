"""Calls a command's Typer app and turns whatever happens into an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, cast

import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_core.commands import CommandContext, CommandSpec
from lemon_core.errors import LemonError
from lemon_core.profiles import app_of, load_target

HELP_WORDS: Final = frozenset({"--help", "-h", "help"})


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
    _whole_summaries(command)
    words = help_request(command, arguments) or arguments
    return guarded(
        spec.name,
        context,
        lambda: command.main(
            words, prog_name=f"lemon {spec.name}", standalone_mode=False, obj=context
        ),
    )


def guarded(name: str, context: CommandContext, call: Callable[[], object]) -> int:
    """The exit code of what `call` does: its result, or that of the error that it raises."""
    try:
        result = call()
    except typer.TyperException as exc:
        # Only wrong arguments raise it here; handlers raise CliError.
        _report_usage(name, exc)
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


def _whole_summaries(command: object) -> None:
    """Have a group's help list its commands with their first sentence whole, not cut to fit."""
    for inner in getattr(command, "commands", {}).values():
        if inner.short_help is None and inner.help:
            inner.short_help = " ".join(inner.help.split("\n\n")[0].split())
        _whole_summaries(inner)


def help_request(command: object, arguments: Sequence[str]) -> list[str] | None:
    """The arguments that print the usage that is asked for; None when none is.

    `--help` and `-h` count anywhere before `--`, and so does the word `help`; but where any words
    may follow, as in a prompt, it counts as the first of them only.
    """
    before = list(takewhile(lambda word: word != "--", arguments))
    if not HELP_WORDS.intersection(before):
        return None
    path: list[str] = []
    words = [word for word in before if word not in HELP_WORDS]
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
        path.append(word)
    if not {"--help", "-h"}.intersection(before) and _takes_any_words(command):
        rest = before[len(path) :]
        if rest[0] != "help":
            return None
    return [*path, "--help"]


def _takes_any_words(command: object) -> bool:
    params = getattr(command, "params", ())
    return any(p.param_type_name == "argument" and p.nargs == -1 and not p.hidden for p in params)


def _report_usage(name: str, exc: typer.TyperException) -> None:
    """The usage line, and what is wrong; a group without a subcommand has its whole help to say."""
    message = exc.format_message()
    if message.startswith("Usage:"):
        print(message.rstrip(), file=sys.stderr)
        return
    command = f"lemon {name}"
    if (where := getattr(exc, "ctx", None)) is not None:
        print(where.get_usage(), file=sys.stderr)
        command = where.command_path
    print(f"{command}: {message} ({command} --help tells more)", file=sys.stderr)


def _report(message: str, context: CommandContext) -> None:
    for line in message.splitlines() or ["failed"]:
        print(f"lemon: {line}", file=sys.stderr)
    if context.environ.get("LEMON_DEBUG") == "1":
        traceback.print_exc()
