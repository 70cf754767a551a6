"""`lemon architecture-docs`: the table of app boundaries, written or checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lemon_core.cli.base import command_app, command_context

app = command_app("Write or check the table of app boundaries.")


@app.command()
def architecture_docs(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 when the table is stale.")
    ] = False,
    root: Annotated[
        Path | None, typer.Option("--root", help="The source tree (default: the one around you).")
    ] = None,
) -> int:
    """Write the table of docs/architecture_boundaries.md from the policy and the BUILD files."""
    from lemon_core.cli.source_tree import source_tree
    from lemon_core.quality import table
    from lemon_core.quality.policy import ArchitecturePolicy, PolicyError

    tree = source_tree(command_context(ctx), root)
    if check:
        report = table.check(tree)
        print(report.render() or f"{table.DOC_PATH} is up to date.")
        return 0 if report.ok else 1
    try:
        policy = ArchitecturePolicy.load(tree)
        changed = table.update(tree, table.render(policy, table.actual_edges(tree)))
    except (PolicyError, table.MarkersMissing) as exc:
        place = "" if isinstance(exc, PolicyError) else f"{table.DOC_PATH}: "
        print(f"lemon: {place}{exc}", file=sys.stderr)
        return 1
    print(f"{table.DOC_PATH} is {'written' if changed else 'up to date'}.")
    return 0
