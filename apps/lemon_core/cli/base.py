"""What the commands of core share: the app object, output, questions, and an open store."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lemon_core.clock import Clock, SystemClock
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.config.load import LoadedConfig
    from lemon_core.secrets import Secrets
    from lemon_core.store import Store


def command_app(help_text: str) -> typer.Typer:
    """A Typer app as every command uses it: plain help, no completion options."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )


def command_context(ctx: typer.Context) -> CommandContext:
    """The context that the command line put into Click's."""
    context = ctx.find_object(CommandContext)
    assert context is not None, "commands are called through lemon_cli.invoke"
    return context


def print_json(value: object) -> None:
    """One JSON document on stdout, indented for people, in the order it was built."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of equally many cells in columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def note(message: str) -> None:
    """A line for the person, on stderr, so that stdout stays what a script reads."""
    print(f"lemon: {message}", file=sys.stderr)


def confirmed(question: str, *, yes: bool) -> bool:
    """True when `yes` was given or a person says so; without a terminal nobody can, so False."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        note(f"{question} Not asked without a terminal: give --yes.")
        return False
    return typer.confirm(question, default=False, err=True)


def project_dir(context: CommandContext, given: Path | None) -> Path:
    """The project whose file is layered over the global one; relative to the user's directory."""
    return context.cwd if given is None else (context.cwd / given.expanduser())


@dataclass(frozen=True, slots=True)
class Core:
    """What a command that boots no runtime may use."""

    context: CommandContext
    loaded: LoadedConfig
    store: Store
    secrets: Secrets
    clock: Clock


@asynccontextmanager
async def open_core(context: CommandContext, cwd: Path | None = None) -> AsyncIterator[Core]:
    """Configuration (plain load), store and secrets, for the block.

    The store may be open in a running Lemon too: read what you like, and write only tables that
    are not mirrored (secrets). Raises `ConfigError` for removed engine keys and `StoreError`.
    """
    from lemon_core import logs
    from lemon_core.bus import Bus
    from lemon_core.config.contributed import Contributed
    from lemon_core.config.load import load_config, with_stored
    from lemon_core.configured_store import open_configured_store
    from lemon_core.master_key import MasterKeyChain, default_providers
    from lemon_core.secrets import Secrets
    from lemon_core.store.system_config import SystemConfigStore

    logs.configure("off")
    loaded = load_config(
        cwd or context.cwd,
        paths=context.paths,
        environ=context.environ,
        profile_defaults=context.profile.config,
        contributed=Contributed.of(context.profile),
    )
    # Before the store makes it: what is in there is its owner's alone.
    context.paths.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    clock = SystemClock()
    environ = dict(loaded.environ)
    async with open_configured_store(loaded.config, context.paths, environ, clock) as store:
        keys = MasterKeyChain(default_providers(context.paths, environ))
        loaded = with_stored(loaded, await SystemConfigStore(store).list())
        yield Core(context, loaded, store, Secrets(store, clock, keys, Bus(), environ), clock)
