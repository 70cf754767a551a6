"""`lemon secrets`: API keys and tokens, encrypted in the store; no command ever prints one."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lemon_core.cli.base import Core, command_app, command_context, note, open_core, print_json

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext
    from lemon_core.secrets import SecretInfo, SecretsStatus

app = command_app("Store API keys and tokens, encrypted.")

TARGETS = ("file", "keychain")
T = TypeVar("T")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def init(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(help="Where the key goes: file or keychain (default: the first there is)."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a key; every stored secret becomes unreadable."),
    ] = False,
) -> int:
    """Create the master key that all secrets are encrypted with.

    A key that exists is replaced only with --force, and then no secret stored before can be read.
    """
    if target is not None and target not in TARGETS:
        raise typer.BadParameter(f"use one of {', '.join(TARGETS)}", param_hint="--target")
    import anyio

    return anyio.run(_init, command_context(ctx), target, force)


async def _init(context: CommandContext, target: str | None, force: bool) -> int:
    from lemon_core import logs
    from lemon_core.config.env import environment
    from lemon_core.master_key import MasterKeyChain, default_providers

    logs.configure("off")
    environ, _, _ = environment(context.paths, context.environ)
    keys = MasterKeyChain(default_providers(context.paths, environ))
    if force:
        note("warning: a secret that was stored under another key cannot be read any more")
    place = await keys.init_master_key(target, force=force)
    where = next(str(provider) for provider in keys.providers if provider.name == place)
    print(f"The master key is in {where}. Keep a copy: without it no secret can be read.")
    return 0


@app.command()
def status(ctx: typer.Context, as_json: JsonOption = False) -> int:
    """Show where the master key is and how many secrets there are."""

    async def ask(core: Core) -> SecretsStatus:
        return await core.secrets.status()

    found = _with_core(ctx, ask)
    if as_json:
        print_json(asdict(found))
        return 0
    from lemon_core.cli.marks import columns, tick

    context = command_context(ctx)
    if found.configured:
        print(f"{tick(context, True)} the master key comes from the {found.source}")
    else:
        print(f"{tick(context, False)} no usable master key ({found.problem})")
    rows = [
        ("secrets stored", str(found.count)),
        ("owner", found.owner),
        ("keychain", "available" if found.keychain_available else "not on this machine"),
        ("key in the environment", "yes" if found.env_fallback else "no"),
    ]
    print("\n".join(columns(rows, "  ")))
    if found.problem == "missing_master_key":
        print("Create one: lemon secrets init")
    return 0


@app.command("list")
def list_secrets(ctx: typer.Context, as_json: JsonOption = False) -> int:
    """List the stored secrets, without their values."""

    async def ask(core: Core) -> tuple[SecretInfo, ...]:
        return await core.secrets.list()

    infos = _with_core(ctx, ask)
    if as_json:
        print_json([asdict(info) for info in infos])
        return 0
    if not infos:
        print("No secrets are stored. Store one: lemon secrets set NAME")
        return 0
    from lemon_core.cli.marks import columns

    head = ("NAME", "PROVIDER", "CHANGED", "EXPIRES", "LAST USED", "USES")
    rows = [
        (
            info.name,
            info.provider,
            _day(info.updated_at),
            _day(info.expires_at),
            _day(info.last_used_at),
            str(info.usage_count),
        )
        for info in infos
    ]
    print("\n".join(columns([head, *rows])))
    return 0


@app.command("set")
def set_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The secret's name, such as OPENAI_API_KEY.")],
    value: Annotated[
        str | None,
        typer.Argument(help="The value; better is --stdin, or the question without echo."),
    ] = None,
    provider: Annotated[str, typer.Option(help="A word about where it comes from.")] = "manual",
    expires_at: Annotated[
        int | None, typer.Option(help="When it expires, in milliseconds since the epoch.")
    ] = None,
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the value from standard input.")
    ] = False,
) -> int:
    """Store a secret, or replace it; the value is asked for without echo."""
    if value is not None and from_stdin:
        raise typer.BadParameter("give the value once: as VALUE or with --stdin")
    if expires_at is not None and expires_at <= datetime.now(UTC).timestamp() * 1000:
        raise typer.BadParameter("that time is over", param_hint="--expires-at")
    if value is not None:
        note("warning: the value stands in your shell's history: --stdin keeps it out")
    text = _read_value(name, from_stdin) if value is None else value
    if not text:
        raise typer.BadParameter("the value is empty")

    async def store(core: Core) -> SecretInfo:
        return await core.secrets.set(name, text, provider=provider, expires_at=expires_at)

    info = _with_core(ctx, store)
    print(f"Stored {info.name}.")
    return 0


@app.command()
def delete(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The secret's name.")]
) -> int:
    """Remove a stored secret."""

    async def remove(core: Core) -> bool:
        return await core.secrets.delete(name)

    if not _with_core(ctx, remove):
        note(f"there is no secret {name!r}: lemon secrets list shows all")
        return 1
    print(f"Removed {name}.")
    return 0


@app.command()
def check(ctx: typer.Context, as_json: JsonOption = False) -> int:
    """Show which well-known credentials are there, and where; values are masked."""
    from lemon_core.cli.known import Known, look_up

    found: list[Known] = _with_core(ctx, look_up)
    if as_json:
        print_json([asdict(known) for known in found])
        return 0
    from lemon_core.cli.marks import columns

    rows = [(known.name, known.source, known.masked or known.problem or "") for known in found]
    print("\n".join(columns([("NAME", "SOURCE", "VALUE"), *rows])))
    there = sum(known.masked is not None for known in found)
    print(f"{there} of {len(found)} are there.")
    return 0


@app.command("import-env")
def import_env(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-d", help="Only say what would be done.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace what is stored already.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Copy well-known credentials from the environment into the store."""
    from lemon_core.cli.known import Imported, import_known

    async def run(core: Core) -> Imported:
        return await import_known(core, dry_run=dry_run, force=force)

    done = _with_core(ctx, run)
    if as_json:
        print_json({**asdict(done), "dry_run": dry_run})
        return 0
    word = "to import" if dry_run else "imported"
    for label, names in ((word, done.imported), ("already in store", done.already_stored)):
        for name in names:
            print(f"{label}: {name}")
    print(
        f"{len(done.imported)} {word}, {len(done.already_stored)} already in store, "
        f"{len(done.not_set)} not set"
    )
    return 0


def _with_core(ctx: typer.Context, use: Callable[[Core], Awaitable[T]]) -> T:
    """What `use` gives with the store open; the running server's secrets are the same ones."""
    import anyio

    from lemon_core.secrets import SecretsError

    async def run() -> T:
        async with open_core(command_context(ctx)) as core:
            return await use(core)

    try:
        return anyio.run(run)
    except SecretsError as exc:
        if exc.code != "missing_master_key":
            raise
        raise SecretsError(exc.code, f"{exc}: create one with lemon secrets init") from exc


def _read_value(name: str, from_stdin: bool) -> str:
    """The value from standard input without its last line end, or from a hidden question."""
    if from_stdin or not sys.stdin.isatty():
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    value: str = typer.prompt(f"Value of {name}", hide_input=True, err=True)
    return value


def _day(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
