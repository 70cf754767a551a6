"""`lemon readiness`: one word, and what stands in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lemon_core.cli.base import command_app, command_context, print_json, project_dir

app = command_app("Say in a few lines whether Lemon is ready.")


@app.command()
def readiness(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 unless it is ready.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="How many open points to show.")
    ] = 10,
    project: Annotated[
        Path | None,
        typer.Option("--project-dir", help="The project to look at (default: this folder)."),
    ] = None,
) -> int:
    """Say in a few lines whether Lemon is ready: failed, blocked, warning or ready.

    `failed` means that something is broken, `blocked` that something is missing which only you can
    bring. Without --strict the exit code is 0 whatever the answer is.
    """
    import anyio

    from lemon_core.cli.doctor import doctor_view
    from lemon_core.doctor.checks import run_doctor
    from lemon_core.doctor.readiness import Readiness

    context = command_context(ctx)
    report = anyio.run(run_doctor, doctor_view(context, project_dir(context, project)))
    found = Readiness.of(report)
    if as_json:
        print_json(found.as_dict(limit))
    else:
        print(found.render(limit))
    return 1 if strict and found.status != "ready" else 0
