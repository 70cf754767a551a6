"""`lemon doctor`: what is wrong with the installation, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, note, print_json, project_dir
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.doctor import DoctorContext, Report

app = command_app("Look for what would keep Lemon from working.")


@app.command()
def doctor(
    ctx: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(help="With --bundle: the zip to write, or its folder.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every check, not only what needs care.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    project: Annotated[
        Path | None,
        typer.Option("--project-dir", help="The project to look at (default: this folder)."),
    ] = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Also write a redacted zip for support.")
    ] = False,
    bundle_path: Annotated[
        Path | None, typer.Option("--bundle-path", help="Where --bundle writes; implies it.")
    ] = None,
) -> int:
    """Look for what would keep Lemon from working, and say what to do about it.

    Nothing is changed, and nothing needs to run. Exits 1 when a check fails.
    """
    import anyio

    if path is not None and not bundle:
        raise typer.BadParameter("a path is for --bundle only", param_hint="PATH")
    if path is not None and bundle_path is not None:
        raise typer.BadParameter("give one path, not two", param_hint="--bundle-path")
    context = command_context(ctx)
    chosen = path or bundle_path
    target = None if chosen is None else context.cwd / chosen.expanduser()
    found, written = anyio.run(
        _look, context, project_dir(context, project), bundle or bundle_path is not None, target
    )
    if as_json:
        print_json(found.as_dict())
        if written is not None:
            note(f"the support bundle is {written}")
    else:
        print(found.render(verbose=verbose, colours=_colours(context)))
        if written is not None:
            print(f"Support bundle: {written}")
    return 0 if found.ok else 1


async def _look(
    context: CommandContext, project: Path, bundle: bool, target: Path | None
) -> tuple[Report, Path | None]:
    """The report, and where the bundle was written."""
    from lemon_core.doctor.bundle import write_bundle
    from lemon_core.doctor.checks import run_doctor

    looked_at = doctor_view(context, project)
    report = await run_doctor(looked_at)
    return report, await write_bundle(looked_at, report, target) if bundle else None


def doctor_view(context: CommandContext, project: Path) -> DoctorContext:
    """The installation as checks see it, with the log kept off the person's screen."""
    from lemon_core import logs
    from lemon_core.clock import SystemClock
    from lemon_core.doctor import doctor_context

    logs.configure("off")
    return doctor_context(
        project,
        paths=context.paths,
        environ=context.environ,
        clock=SystemClock(),
        profile=context.profile,
    )


def _colours(context: CommandContext) -> bool:
    return sys.stdout.isatty() and not context.environ.get("NO_COLOR")
