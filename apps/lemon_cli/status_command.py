"""`lemon status` and `lemon version`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_cli.examples import examples
from lemon_core.cli.base import command_app, command_context, print_json

if TYPE_CHECKING:
    from lemon_cli.lifecycle import Status
    from lemon_core.commands import CommandContext

status_app = command_app("Say whether the Lemon server runs.")
version_app = command_app("Say which Lemon this is.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@status_app.command("status", epilog=examples("lemon status", "lemon status --json"))
def status_command(ctx: typer.Context, as_json: JsonOption = False) -> int:
    """Say whether the Lemon server runs, and where it listens.

    Exits 1 unless it runs and its router answers.
    """
    import anyio

    from lemon_cli.lifecycle import find_status
    from lemon_core.clock import SystemClock

    context = command_context(ctx)
    status = anyio.run(find_status, context.paths, SystemClock())
    if as_json:
        print_json(_document(context, status))
    else:
        print(status)
        for line in _details(status):
            print(line)
        if status.state == "not_running":
            print("Start it: lemon daemon in the background, lemon start in this terminal.")
    return 0 if status.state == "running" else 1


@version_app.command("version")
def version_command(ctx: typer.Context, as_json: JsonOption = False) -> int:
    """Say which Lemon this is: its version, its commit and its profile."""
    from lemon_core.runtime_env import build_info, source_root

    info = build_info(root=source_root())
    profile = command_context(ctx).profile.name
    if as_json:
        print_json({**asdict(info), "profile": profile})
        return 0
    commit = "" if info.commit is None else f" (commit {info.commit[:12]})"
    print(f"lemon {info.version}{commit}, profile {profile}, Python {info.python}")
    return 0


def _details(status: Status) -> list[str]:
    record = status.record
    if record is None:
        return []
    rows = [("profile", record.profile), ("program", record.root), *record.listening.items()]
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {text}" for name, text in rows]


def _document(context: CommandContext, status: Status) -> dict[str, object]:
    record = status.record
    return {
        "state": status.state,
        "running": status.state == "running",
        "pid": status.pid,
        "started_at_ms": status.started_at_ms,
        "socket": str(context.paths.router_socket) if status.state == "running" else None,
        "listening": {} if record is None else dict(record.listening),
        "profile": None if record is None else record.profile,
        "version": None if record is None else record.version,
        "root": None if record is None else record.root,
    }
