"""`lemon run`: arguments in, one request out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_cli.session_name import session_key_of, session_word
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_cli.render import Renderer

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EPILOG = """Examples:

  lemon run "Say hello"

  git diff | lemon run "Review this:" -

  lemon run --session review "And the tests?"

  lemon run --json "List the files" | jq .type"""


@app.command(epilog=EPILOG)
def run(
    ctx: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="The prompt; - at its end adds standard input."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(help="Continue this session: a word of your own, or a session key."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent profile that answers.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, such as openai:gpt-5 or local.")
    ] = None,
    thinking: Annotated[
        str | None, typer.Option(help="How hard to think: off, minimal, low, medium, high, xhigh.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="The directory the agent works in [default: this one].")
    ] = None,
    queue_mode: Annotated[
        str,
        typer.Option(
            help="If the session is busy: collect, followup, steer, steer_backlog, redirect, "
            "interrupt."
        ),
    ] = "collect",
    approve: Annotated[
        str | None,
        typer.Option(help="ask or deny what a policy wants approved [default: ask on a terminal]."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach/--wait", help="Print the run's id and leave; needs a server."),
    ] = False,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds until the run is aborted.")
    ] = 600.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON event per line; the last is the end.")
    ] = False,
) -> int:
    """Send one prompt and stream the answer.

    The answer goes to standard output, tool steps and notes to standard error. With a running
    server (lemon start) the prompt goes there; otherwise everything runs in this process.

    Exit codes: 0 answered, 1 failed, 2 wrong arguments, 124 timed out, 130 interrupted.
    """
    # Not above: the help of a command imports nothing heavy.
    from lemon_cli.render import JsonRenderer, TextRenderer
    from lemon_cli.run_prompt import RunOptions, run_prompt, send_prompt
    from lemon_core.ids import run_id
    from lemon_core.runs import QUEUE_MODES, THINKING_LEVELS, RunRequest

    context: CommandContext = ctx.obj
    text = _prompt(prompt or [], file, context)
    if thinking is not None and thinking not in THINKING_LEVELS:
        raise CliError(
            f"--thinking {thinking!r}: use one of {', '.join(THINKING_LEVELS)}", ExitCode.USAGE
        )
    if queue_mode not in QUEUE_MODES:
        raise CliError(
            f"--queue-mode {queue_mode!r}: use one of {', '.join(QUEUE_MODES)}", ExitCode.USAGE
        )
    if approve not in (None, "ask", "deny"):
        raise CliError(f"--approve {approve!r}: use ask or deny", ExitCode.USAGE)
    key = session_key_of(session, agent)
    renderer: Renderer = (JsonRenderer if as_json else TextRenderer)(sys.stdout, sys.stderr)
    meta: dict[str, object] = {"auto_resume": True}
    if thinking is not None:
        meta["thinking_level"] = thinking
    if detach and approve == "ask":
        meta["approvals"] = "ask"
    request = RunRequest.normalize(
        {
            "run_id": run_id(),
            "session_key": key,
            "agent_id": agent,
            "prompt": text,
            "queue_mode": queue_mode,
            "model": model,
            "cwd": str(_directory(cwd, context)),
            "meta": meta,
        }
    )
    if (prompt or [])[-1:] != ["-"] and _has_waiting_input():
        renderer.note("standard input was not read: - at the end adds it to the prompt")
    if session is None:
        renderer.note(f"session {session_word(key)} (continue with --session {session_word(key)})")
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    asks = approve == "ask" or (approve is None and terminal)
    options = RunOptions(int(timeout * 1000), asks=asks, terminal=asks and terminal)
    if detach:
        return anyio.run(send_prompt, request, context, renderer)
    return anyio.run(run_prompt, request, options, context, renderer)


def _prompt(words: list[str], file: Path | None, context: CommandContext) -> str:
    """The prompt from where it was asked for; raises `CliError` with the usage code."""
    if words and file is not None:
        raise CliError("give the prompt as arguments or with --file, not both", ExitCode.USAGE)
    if file is not None:
        try:
            text = (context.cwd / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise CliError(f"--file {file}: {_reason(exc)}", ExitCode.USAGE) from exc
        source = f"file {file}"
    elif words and words[-1] == "-":
        told, read = " ".join(words[:-1]), sys.stdin.read()
        source = "standard input"
        text = f"{told}\n\n{read}" if told and read.strip() else read
    else:
        text, source = " ".join(words), "prompt"
    if not text.strip():
        raise CliError(
            f'the {source} is empty: lemon run "your prompt", or - to read standard input',
            ExitCode.USAGE,
        )
    return text


def _has_waiting_input() -> bool:
    """Whether something was piped into this command, as far as it has come by now."""
    import fcntl
    import stat
    import termios

    try:
        fd = sys.stdin.fileno()
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return False
        return any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return False


def _reason(exc: OSError | UnicodeDecodeError) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else "is not UTF-8 text"


def _directory(cwd: Path | None, context: CommandContext) -> Path:
    directory = context.cwd if cwd is None else context.cwd / context.paths.expand(str(cwd))
    if not directory.is_dir():
        raise CliError(f"--cwd {cwd}: no such directory", ExitCode.USAGE)
    return directory.resolve()
