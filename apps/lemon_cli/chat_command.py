"""`lemon chat`: arguments in, a conversation out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import anyio
import typer

from lemon_cli.errors import CliError, ExitCode
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_cli.chat.conversation import Settings
    from lemon_cli.chat.screen import Screen
    from lemon_cli.chat.transcript import Transcript

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EPILOG = """Examples:

  lemon chat

  lemon chat --session review --model openai:gpt-5

  TERM=dumb lemon chat"""


@app.command(epilog=EPILOG)
def chat(
    ctx: typer.Context,
    session: Annotated[
        str | None,
        typer.Option(help="Go on in this session: a word of your own, or a session key."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent profile that answers.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, such as openai:gpt-5 or local.")
    ] = None,
    thinking: Annotated[
        str | None,
        typer.Option(help="How hard to think: off, minimal, low, medium, high, xhigh."),
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="The directory the agent works in [default: this one].")
    ] = None,
) -> int:
    """Talk in the terminal.

    With a running server (lemon start) the conversation happens there; otherwise everything runs
    in this process. Type /help inside for commands and keys. Colours follow NO_COLOR; a terminal
    that cannot move its cursor (TERM=dumb) gets plain lines.

    Exit codes: 0 left, 1 failed, 2 wrong arguments or no terminal, 130 left with Ctrl-C.
    """
    from lemon_cli.chat.conversation import Settings
    from lemon_cli.chat.own_commands import own_commands
    from lemon_cli.session_name import session_key_of
    from lemon_core.runs import THINKING_LEVELS

    context: CommandContext = ctx.obj
    if thinking is not None and thinking not in THINKING_LEVELS:
        raise CliError(
            f"--thinking {thinking!r}: use one of {', '.join(THINKING_LEVELS)}", ExitCode.USAGE
        )
    directory = _directory(cwd, context)
    settings = Settings(
        session_key=session_key_of(session, agent),
        agent=agent,
        model=model,
        thinking=thinking,
        cwd=directory,
        home=context.paths.home,
        own_commands=partial(own_commands, context.paths.agent_dir(context.environ), directory),
    )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError(
            'chat needs a terminal for input and output: lemon run "…" answers in a script',
            ExitCode.USAGE,
        )
    if not _is_set_up(context):
        return ExitCode.FAILED
    from lemon_cli.chat.terminal import is_dumb, typed_ahead

    # A model may answer with what has no form in the terminal's encoding.
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    with nullcontext() if is_dumb(context.environ) else typed_ahead(sys.stdin.fileno()):
        return anyio.run(_chat, context, settings)


def _is_set_up(context: CommandContext) -> bool:
    """Whether something can answer: a server, or what is set up now or was before."""
    from lemon_core.state_lock import read_holder

    if read_holder(context.paths.runtime_lock) is not None:
        return True
    from lemon_cli.first_run import ensure_set_up  # imports much

    return ensure_set_up(context)


async def _chat(context: CommandContext, settings: Settings) -> int:
    from lemon_cli.access import open_way
    from lemon_cli.chat.commands import SlashCommands
    from lemon_cli.chat.conversation import Conversation
    from lemon_cli.chat.models import model_window
    from lemon_cli.chat.service import ChatService, LocalChat, RemoteChat
    from lemon_cli.chat.transcript import Transcript
    from lemon_core.single_errors import single_errors

    here: Callable[..., ChatService] = LocalChat
    there: Callable[..., ChatService] = RemoteChat
    with single_errors():
        async with open_way(context, _note, here=here, there=there) as service:
            transcript = Transcript()
            screen = _screen(context, settings, transcript)
            return await Conversation(
                service,
                screen,
                transcript,
                settings,
                windows=model_window,
                commands=SlashCommands(),
            ).serve()


def _screen(context: CommandContext, settings: Settings, transcript: Transcript) -> Screen:
    from lemon_cli.chat.terminal import color_system, is_dumb

    if is_dumb(context.environ):
        from lemon_cli.chat.plain_screen import PlainScreen

        return PlainScreen(sys.stdin.fileno(), sys.stdout, transcript)
    from lemon_cli.chat.completion import ChatCompleter
    from lemon_cli.chat.history import open_history
    from lemon_cli.chat.models import model_names
    from lemon_cli.chat.prompt_screen import PromptScreen
    from lemon_cli.chat.status import Stopwatch, status_line
    from lemon_core.runs import QUEUE_MODES, THINKING_LEVELS

    words: dict[str, Callable[[], tuple[str, ...]]] = {
        "model": lambda: model_names(transcript.model),
        "thinking": lambda: THINKING_LEVELS,
        "queue": lambda: QUEUE_MODES,
    }
    watch = Stopwatch(time.monotonic)
    return PromptScreen(
        sys.stdout,
        transcript,
        colors=color_system(context.environ),
        completer=ChatCompleter(words, settings.cwd, settings.home, settings.own_commands),
        history=open_history(context.paths.state_dir),
        status=lambda: status_line(transcript, settings, watch),
    )


def _directory(cwd: Path | None, context: CommandContext) -> Path:
    directory = context.cwd if cwd is None else context.cwd / context.paths.expand(str(cwd))
    if not directory.is_dir():
        raise CliError(f"--cwd {cwd}: no such directory", ExitCode.USAGE)
    return directory.resolve()


def _note(text: str) -> None:
    print(f"lemon: {text}", file=sys.stderr, flush=True)
