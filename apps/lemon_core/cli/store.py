"""`lemon store`: look after the database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, note, print_json, text_table

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext
    from lemon_core.store import StoreSettings
    from lemon_core.store.jsonl_import import TableCount

app = command_app("Look after the database.")


@app.callback()
def store() -> None:
    """Look after the database."""


@app.command()
def migrate(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="Folder with the old store's .jsonl files.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="File or folder; default: the configured store.")
    ] = None,
    include_runs: Annotated[
        bool, typer.Option("--include-runs", help="Take finished runs into the history too.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite rows that are there already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-d", help="Only count; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Import an older store of .jsonl files. Lemon has to be stopped for it."""
    import anyio

    context = command_context(ctx)
    settings = _destination(context, to)

    async def run() -> list[TableCount]:
        return await _migrate(
            context, context.cwd / source.expanduser(), settings, include_runs, replace, dry_run
        )

    counts = anyio.run(run)
    destination = str(settings.path)
    if as_json:
        tables = [asdict(count) for count in counts]
        print_json({"destination": destination, "dry_run": dry_run, "tables": tables})
        return 0
    print(_table(counts))
    for count in counts:
        if count.skipped:
            note(f"{count.table}: not imported: {count.skipped}")
        if count.bad_lines:
            note(f"{count.table}: unreadable lines passed over: {_numbers(count.bad_lines)}")
    note(f"{destination}: {'nothing was written (dry run)' if dry_run else 'imported'}")
    return 0


def _destination(context: CommandContext, to: Path | None) -> StoreSettings:
    from lemon_core.config.load import load_config
    from lemon_core.configured_store import store_settings
    from lemon_core.store import StoreSettings
    from lemon_core.store.sqlite_file import database_file

    if to is not None:
        return StoreSettings("sqlite", database_file(context.cwd / to.expanduser()))
    loaded = load_config(context.cwd, paths=context.paths, environ=context.environ)
    settings = store_settings(loaded.config, context.paths)
    if settings.backend != "sqlite" or settings.path is None:
        raise typer.BadParameter(f"store.backend is {settings.backend!r}: give --to FILE")
    return StoreSettings("sqlite", database_file(settings.path))


async def _migrate(
    context: CommandContext,
    source: Path,
    settings: StoreSettings,
    include_runs: bool,
    replace: bool,
    dry_run: bool,
) -> list[TableCount]:
    from contextlib import AsyncExitStack

    from lemon_core import logs
    from lemon_core.boot import hold_foreign_store
    from lemon_core.clock import SystemClock
    from lemon_core.state_lock import hold_state_lock
    from lemon_core.store.jsonl_import import migrate_jsonl_to_sqlite

    logs.configure("off")  # what was passed over is told below
    clock, paths = SystemClock(), context.paths
    assert settings.path is not None
    async with AsyncExitStack() as held:
        if not dry_run:
            # A running Lemon mirrors tables in memory and would not see what is written here.
            await held.enter_async_context(hold_state_lock(paths.runtime_lock, "one_shot", clock))
            await held.enter_async_context(hold_foreign_store(settings, paths, "one_shot", clock))
        return await migrate_jsonl_to_sqlite(
            source,
            settings.path,
            include_runs=include_runs,
            replace=replace,
            dry_run=dry_run,
            clock=clock,
        )


def _table(counts: list[TableCount]) -> str:
    lines: list[list[str]] = [["table", "lines", "bad", "written", "kept", "left out"]]
    for count in counts:
        if not count.skipped:
            read = (count.lines, len(count.bad_lines))
            numbers = (*read, count.written, count.kept, count.left_out)
            lines.append([count.table, *map(str, numbers)])
    return text_table(lines)


def _numbers(lines: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, lines[:10]))
    return shown if len(lines) <= 10 else f"{shown} and {len(lines) - 10} more"
