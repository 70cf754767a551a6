"""Calling a command of core as the command line does, in a home of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import typer

from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile


def run_command(
    app: typer.Typer,
    *arguments: str,
    home: Path,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    profile: Profile | None = None,
) -> int:
    """The exit code of `app` with these arguments; what its handler raises comes through.

    The environment holds `home`, the `PATH` of this process and `environ`, and nothing else.
    """
    context = CommandContext(
        profile=profile or Profile("test"),
        environ={"HOME": str(home), "PATH": os.environ.get("PATH", ""), **(environ or {})},
        paths=PathSettings(home),
        cwd=cwd or home,
    )
    command = typer.main.get_command(app)
    code = command.main(list(arguments), prog_name="lemon", standalone_mode=False, obj=context)
    return code if isinstance(code, int) else 0
