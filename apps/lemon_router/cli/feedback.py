"""`lemon feedback`: what is recorded of how runs turned out, by kind of task and model.

It reads one file and changes nothing, so it works beside a running Lemon.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lemon_core.cli.base import command_app, command_context, note, print_json

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext
    from lemon_router.feedback_report import Aggregate
    from lemon_router.feedback_view import FeedbackView

app = command_app("Show how well models did, by kind of task.")

DAY_MS = 86_400_000

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def stats(ctx: typer.Context, as_json: AsJson = False) -> int:
    """Show how much is recorded, and over which time."""
    view = _view(command_context(ctx))
    span = view.span()
    if as_json:
        print_json({"path": str(view.path), **span._asdict()})
    elif span.oldest_at_ms is None or span.newest_at_ms is None:
        print("Nothing is recorded yet.")
    else:
        oldest, newest = _day(span.oldest_at_ms), _day(span.newest_at_ms)
        print(f"{span.run_count} outcomes of {span.key_count} keys, {oldest} to {newest}")
        print(view.path)
    return 0


@app.command("list")
def list_keys(
    ctx: typer.Context,
    workspace: Annotated[
        str | None, typer.Option("--workspace", help="Only of this workspace's key.")
    ] = None,
    family: Annotated[
        str | None, typer.Option("--family", help="Only code, query, file_ops, chat or unknown.")
    ] = None,
    since: Annotated[
        int | None, typer.Option("--since", min=1, help="Only of so many days.", metavar="DAYS")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the keys (family|toolset|workspace|provider|model) and what is known of each."""
    from lemon_core.ids import now_ms
    from lemon_router.feedback_report import parse_key

    view = _view(command_context(ctx))
    after = 0 if since is None else now_ms() - since * DAY_MS
    found = []
    for row in view.aggregates(since_ms=after):
        parts = parse_key(row.key)
        same_place = workspace is None or (parts and parts.workspace == workspace.lower())
        same_kind = family is None or (parts and parts.family == family.lower())
        if same_place and same_kind:
            found.append(row)
    if as_json:
        print_json({"keys": [asdict(row) for row in found]})
    elif found:
        print("\n".join(_table("KEY", found)))
    else:
        print("Nothing is recorded of that.")
    return 0


@app.command()
def inspect(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="A key as `list` shows it, or its first three parts.")],
    as_json: AsJson = False,
) -> int:
    """Show one key; or for family|toolset|workspace each model, and which one is best."""
    view = _view(command_context(ctx))
    key = key.lower()
    found: dict[str, Any] = {}
    lines: list[str] = []
    if (row := view.aggregate(key)) is not None:
        found, lines = asdict(row), _details(row)
    elif models := view.models(key):
        best = view.best_model_for_context(key)
        found = {"context": key, "best_model": best, "models": [asdict(m) for m in models]}
        lines = [*_table("MODEL", models), f"best: {best or 'too little is known'}"]
    if not found:
        note(f"nothing is recorded of {key}: lemon feedback list shows the keys")
        return 1
    if as_json:
        print_json(found)
    else:
        print("\n".join(lines))
    return 0


def _view(context: CommandContext) -> FeedbackView:
    from lemon_core.config.contributed import Contributed
    from lemon_core.config.load import load_config
    from lemon_router.feedback import feedback_file
    from lemon_router.feedback_view import FeedbackView

    config = load_config(
        context.cwd,
        paths=context.paths,
        environ=context.environ,
        profile_defaults=context.profile.config,
        contributed=Contributed.of(context.profile),
    ).config
    file = feedback_file(config, context.paths)
    return FeedbackView(file, config.router.routing_feedback.min_sample_size)


def _table(title: str, rows: list[Aggregate]) -> list[str]:
    from lemon_core.cli.marks import columns

    return columns(
        [
            (title, "RUNS", "SUCCESS", "MEAN TIME", "CONFIDENCE"),
            *((r.key, str(r.total), _rate(r), _time(r), r.confidence) for r in rows),
        ]
    )


def _details(row: Aggregate) -> list[str]:
    outcomes = ", ".join(f"{count} {word}" for word, count in row.outcomes.items())
    return [
        row.key,
        f"runs: {row.total} ({outcomes})",
        f"success: {_rate(row)} ({row.confidence})",
        f"mean time: {_time(row)}",
    ]


def _rate(row: Aggregate) -> str:
    return "-" if row.success_rate is None else f"{row.success_rate:.0%}"


def _time(row: Aggregate) -> str:
    return "-" if row.mean_duration_ms is None else f"{row.mean_duration_ms / 1000:.1f} s"


def _day(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
