"""`lemon quality`: the repository's own checks, as the build runs them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, print_json
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.quality import CheckReport

app = command_app("Run the repository's own checks.")


@app.command()
def quality(
    ctx: typer.Context,
    root: Annotated[
        Path | None, typer.Option("--root", help="The source tree (default: the one around you).")
    ] = None,
    validate_config: Annotated[
        bool, typer.Option("--validate-config", help="Check the configuration files as well.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the notes as well; they fail nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Check the dependency graph, the documents and the tests of the source tree.

    Every issue is printed with its place; exits 1 on any.
    """
    from lemon_core.cli.source_tree import source_tree
    from lemon_core.quality.all_checks import check_all

    context = command_context(ctx)
    tree = source_tree(context, root)
    reports = check_all(tree)
    if validate_config:
        reports.append(_configuration(context, tree))
    if as_json:
        print_json(_document(tree, reports))
    else:
        print("\n".join(_lines(reports, verbose=verbose)))
    return 0 if all(report.ok for report in reports) else 1


def _configuration(context: CommandContext, tree: Path) -> CheckReport:
    """The configuration as a check: what a server would refuse is an issue, the rest a note."""
    from lemon_core.config.contributed import Contributed
    from lemon_core.config.load import inspect_config
    from lemon_core.quality import CheckReport, Issue

    loaded, errors = inspect_config(
        tree,
        paths=context.paths,
        environ=context.environ,
        contributed=Contributed.of(context.profile),
    )
    return CheckReport(
        "configuration",
        tuple(Issue("invalid_config", line) for line in errors),
        tuple(Issue("config_warning", line) for line in loaded.warnings),
    )


def _lines(reports: list[CheckReport], *, verbose: bool) -> list[str]:
    lines = []
    for report in reports:
        if report.issues:
            lines.append(f"[fail] {report.name}: {_some(len(report.issues))}")
        else:
            lines.append(f"[ok]   {report.name}")
        lines += [f"  {issue}" for issue in report.issues]
        if verbose:
            lines += [f"  note: {text}" for text in report.notes]
        elif report.notes:
            lines.append(f"  notes: {len(report.notes)} (-v shows them)")
    count = sum(len(report.issues) for report in reports)
    return [*lines, f"{_some(count)}." if count else "No issues."]


def _some(count: int) -> str:
    return f"{count} issue" if count == 1 else f"{count} issues"


def _document(tree: Path, reports: list[CheckReport]) -> dict[str, object]:
    return {
        "root": str(tree),
        "ok": all(report.ok for report in reports),
        "checks": [
            {
                "name": report.name,
                "ok": report.ok,
                "issues": [asdict(issue) for issue in report.issues],
                "notes": [asdict(issue) for issue in report.notes],
            }
            for report in reports
        ],
    }
