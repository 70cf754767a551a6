"""`lemon extension`: look at an extension before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import command_app, command_context, note, print_json

if TYPE_CHECKING:
    from lemon_core.extensions import ExtensionManifest, ManifestProblem

app = command_app("Check an extension's manifest.")


@app.callback()
def extension() -> None:
    """Check an extension's manifest; nothing of the extension is executed."""


@app.command("validate")
def validate(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="The manifest, or the extension's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Read the manifest and tell everything that is wrong with it."""
    from lemon_core.extensions import (
        MANIFEST_NAMES,
        ManifestInvalid,
        ManifestProblem,
        manifest_file,
        read_manifest,
    )

    context = command_context(ctx)
    given = context.cwd / context.paths.expand(str(path))
    file = manifest_file(given)
    if file is None:
        missing = ManifestProblem("", f"there is no manifest ({', '.join(MANIFEST_NAMES)})")
        return _told(given, None, (missing,), as_json=as_json)
    try:
        manifest = read_manifest(file)
    except ManifestInvalid as exc:
        return _told(file, None, exc.problems, as_json=as_json)
    return _told(file, manifest, (), as_json=as_json)


def _told(
    file: Path,
    manifest: ExtensionManifest | None,
    problems: tuple[ManifestProblem, ...],
    *,
    as_json: bool,
) -> int:
    if as_json:
        print_json(
            {
                "path": str(file),
                "ok": not problems,
                "name": None if manifest is None else manifest.name,
                "version": None if manifest is None else manifest.version,
                "problems": [{"path": one.path, "message": one.message} for one in problems],
            }
        )
    elif manifest is not None:
        print(f"{file}: {manifest.name} {manifest.version} is valid")
    else:
        note(f"{file} is not valid")
        for problem in problems:
            note(f"  {problem}")
    return 1 if problems else 0
