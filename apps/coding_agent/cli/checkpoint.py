"""`lemon checkpoint`: what files were before an agent changed them, to look at and to put back.

It reads the folder of checkpoints alone, so it works beside a running Lemon, after a restart, and
with a configuration that does not.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, confirmed, note, print_json

if TYPE_CHECKING:
    from lemon_core.checkpoint_folder import Checkpoint
    from lemon_core.checkpoints import Checkpoints
    from lemon_core.commands import CommandContext

app = command_app("Show and undo what an agent changed in files.")

Id = Annotated[str, typer.Argument(metavar="ID", help="As `lemon checkpoint list` shows it.")]
Paths = Annotated[
    list[Path] | None, typer.Argument(metavar="PATH", help="Only these of its files.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_checkpoints(
    ctx: typer.Context,
    session: Annotated[str | None, typer.Option("--session", help="Of this session only.")] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Only those made in or below this directory.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> int:
    """List the checkpoints, newest first: id, time (UTC), and the files that it holds."""
    import anyio

    from coding_agent.tools.checkpoint import checkpoint_line
    from lemon_core.workspace import is_inside

    context = command_context(ctx)
    cwd = os.path.realpath(context.cwd)

    async def run() -> tuple[Checkpoint, ...]:
        return await _checkpoints(context).list(session)

    found = [
        header
        for header in anyio.run(run)
        if header.kind == "filesystem" and (not here or is_inside(header.cwd or "", cwd))
    ]
    shown = found[:limit]
    if as_json:
        print_json({"count": len(found), "checkpoints": [asdict(header) for header in shown]})
        return 0
    print("\n".join(map(checkpoint_line, shown)) or "There are no checkpoints.")
    if len(found) > limit:
        note(f"these are the newest {limit} of {len(found)}: give --limit for more")
    return 0


@app.command()
def diff(
    ctx: typer.Context, checkpoint_id: Id, paths: Paths = None, as_json: AsJson = False
) -> int:
    """Show what changed since a checkpoint."""
    import anyio

    context = command_context(ctx)

    async def run() -> list[dict[str, object]]:
        store = _checkpoints(context)
        chosen = await _chosen(store, context, checkpoint_id, paths)
        return [asdict(change) for change in await store.diff_filesystem(checkpoint_id, chosen)]

    changes = anyio.run(run)
    if as_json:
        print_json({"checkpoint_id": checkpoint_id, "changes": changes})
    elif changes:
        print("\n".join(f"{c['path']} ({c['change']})\n{c['diff']}".rstrip() for c in changes))
    else:
        print("Nothing changed since.")
    return 0


@app.command()
def restore(
    ctx: typer.Context,
    checkpoint_id: Id,
    paths: Paths = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> int:
    """Put files back as they were, and delete those that did not exist."""
    import anyio

    context = command_context(ctx)
    store = _checkpoints(context)

    async def look() -> tuple[Checkpoint, list[str] | None]:
        header, _ = await store.get(checkpoint_id)
        return header, await _chosen(store, context, checkpoint_id, paths)

    header, chosen = anyio.run(look)
    names = ", ".join(chosen if chosen is not None else header.paths)
    if not confirmed(f"Put back {names} in {header.cwd}?", yes=yes):
        return 1

    async def run() -> dict[str, object]:
        return asdict(await store.restore_filesystem(checkpoint_id, chosen))

    done = anyio.run(run)
    if as_json:
        print_json({"checkpoint_id": checkpoint_id, **done})
        return 0
    for word, key in (("restored", "restored"), ("deleted", "deleted")):
        for name in done[key]:  # type: ignore[attr-defined]  # both are tuples of names
            print(f"{word} {name}")
    return 0


async def _chosen(
    store: Checkpoints, context: CommandContext, checkpoint_id: str, paths: list[Path] | None
) -> list[str] | None:
    """The paths by the checkpoint's names: as given, else as seen from the user's directory."""
    if not paths:
        return None
    header, _ = await store.get(checkpoint_id)
    return [_named(str(path), header, context.cwd) for path in paths]


def _named(text: str, header: Checkpoint, cwd: Path) -> str:
    if text in header.paths:
        return text
    return os.path.normpath(os.path.join(os.path.realpath(cwd), text))


def _checkpoints(context: CommandContext) -> Checkpoints:
    from lemon_core import logs
    from lemon_core.bus import Bus
    from lemon_core.checkpoint_folder import CheckpointFolder
    from lemon_core.checkpoints import Checkpoints
    from lemon_core.clock import SystemClock
    from lemon_core.introspection import Introspection
    from lemon_core.store import Store
    from lemon_core.store.memory import MemoryBackend

    logs.configure("off")
    clock = SystemClock()
    # Records belong to runs; what a person does by hand is not recorded.
    nothing = Introspection(Store(MemoryBackend()), clock, enabled=False)
    return Checkpoints(CheckpointFolder(context.paths.checkpoint_dir), clock, Bus(), nothing)
