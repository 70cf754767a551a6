"""`lemon update`: a newer release, the release before, or what there is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, note, print_json

if TYPE_CHECKING:
    from lemon_core.calver import CalVer
    from lemon_core.commands import CommandContext
    from lemon_core.update import Step, UpdateResult

app = command_app("Install a newer release, or go back to the last.")


@app.command()
def update(
    ctx: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Only tell what there is.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Use the newest other release that is kept.")
    ] = False,
    channel: Annotated[
        str | None, typer.Option(help="stable, preview or nightly; the last two need a version.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Exactly this release.")] = None,
    config_path: Annotated[
        Path | None,
        typer.Option(help="In a source tree: the file to migrate [default: ~/.lemon/config.toml]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Update this installation; a running Lemon goes on with its release until a restart."""
    if rollback and (check or channel is not None or version is not None):
        raise typer.BadParameter("--rollback takes none of --check, --channel and --version")
    options = UpdateOptions(check, rollback, channel, version, config_path, as_json)
    return run_update(command_context(ctx), options, program=Path(__file__))


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """What was asked for on the command line."""

    check: bool = False
    rollback: bool = False
    channel: str | None = None
    version: str | None = None
    config_path: Path | None = None
    as_json: bool = False


def run_update(context: CommandContext, options: UpdateOptions, *, program: Path) -> int:
    """The exit code; `program` is a file of the running Lemon, which tells what is updated."""
    if _in_source_tree(program):
        return _migrate(context, options)
    if options.config_path is not None:
        raise typer.BadParameter(
            "--config-path is for source trees: a release migrates at its start"
        )
    import anyio

    result = anyio.run(_updated, context, options, program)
    _tell(result, as_json=options.as_json)
    return 0


async def _updated(context: CommandContext, options: UpdateOptions, program: Path) -> UpdateResult:
    from lemon_core.config.load import load_config
    from lemon_core.update import UPDATE_URL_VARIABLE, Updates, Wanted
    from lemon_core.update_layout import Installation
    from lemon_core.update_manifest import Machine

    installation = Installation.find(context.paths, program)
    loaded = load_config(context.cwd, paths=context.paths, environ=context.environ)
    updates = Updates(
        installation,
        Machine.here(context.profile.name),
        loaded.environ.get(UPDATE_URL_VARIABLE) or installation.source(),
        on_step=_say_step,
        on_bytes=_progress(),
    )
    if options.rollback:
        return await updates.rollback()
    settings = loaded.config.runtime
    wanted = Wanted.parse(
        options.channel or settings.channel, options.version or settings.pinned_version
    )
    return await (updates.check(wanted) if options.check else updates.apply(wanted))


def _migrate(context: CommandContext, options: UpdateOptions) -> int:
    """A source tree is updated by its version control: only the configuration is brought along."""
    from lemon_core.config.migrate import migrate_config
    from lemon_core.config.retired import migrated
    from lemon_core.config.source import dotted, read_toml

    if options.rollback or options.channel or options.version:
        raise typer.BadParameter("a source tree has no releases: update it with git")
    path = context.paths.config_file
    if options.config_path is not None:
        path = context.cwd / context.paths.expand(str(options.config_path))
    told: list[str] = []
    if options.check:
        file = read_toml(path)
        due, applied = file.problem is None and migrated(file.data).changed, False
        message = f"{path}: {'has retired sections: lemon update' if due else 'nothing to migrate'}"
    else:
        report = migrate_config(path)
        due, applied, message = False, report.backup is not None, report.describe()
        told = [dotted(key) for key in report.engine_keys]
    if options.as_json:
        print_json(
            {
                "source_tree": True,
                "migration_due": due,
                "migration_applied": applied,
                "engine_keys": told,
                "message": message,
            }
        )
        return 0
    print(f"this is a source tree: only the configuration is migrated here\n{message}")
    for name in told:
        note(f"{path}: {name} selects an engine and has to be removed by hand")
    return 0


def _tell(result: UpdateResult, *, as_json: bool) -> None:
    message = _message(result)
    if as_json:
        print_json(
            {
                "current_version": str(result.current),
                "latest_version": None if result.latest is None else str(result.latest),
                "update_available": result.available,
                "update_applied": result.applied,
                "restart_required": result.restart_required,
                "message": message,
            }
        )
    else:
        print(message)


def _message(result: UpdateResult) -> str:
    if result.applied:
        told = f"Lemon {result.current} is in use now"
    elif result.available:
        told = f"Lemon {result.latest} can be installed: lemon update (in use: {result.current})"
    else:
        told = f"nothing to do: Lemon {result.current} is in use"
    return f"{told}; restart a running Lemon: lemon restart" if result.restart_required else told


def _say_step(step: Step, version: CalVer) -> None:
    words = {"download": "downloading", "unpack": "unpacking", "flip": "switching to"}
    if step in words:
        note(f"{words[step]} {version}")


def _progress() -> Callable[[int, int], None]:
    """Tells how far a download is: one moving line on a terminal, else a line per quarter."""
    told = -1

    def on_bytes(done: int, total: int) -> None:
        nonlocal told
        percent = done * 100 // max(total, 1)
        if sys.stderr.isatty():
            if percent != told:
                print(f"\rlemon: {percent:3} %", end="", file=sys.stderr, flush=True)
                if done >= total:
                    print(file=sys.stderr)
                told = percent
        elif percent // 25 != told:
            told = percent // 25
            note(f"{percent} % of {total / (1 << 20):.0f} MiB")

    return on_bytes


def _in_source_tree(program: Path) -> bool:
    # apps/lemon_core/cli/update.py; under Bazel these are links into the tree.
    return any((folder / "MODULE.bazel").is_file() for folder in program.resolve().parents[2:4])
