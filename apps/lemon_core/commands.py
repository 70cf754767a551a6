"""How an app declares commands of the `lemon` program without importing anything heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lemon_core.paths import PathSettings
    from lemon_core.profiles import Profile


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One word of the command line.

    `target` is `package.module:attribute`, a Typer app imported only when the command is used, so
    that the top-level help needs nothing but these specs. `needs_runtime` tells that the command
    may boot a runtime from the profile.
    """

    name: str
    summary: str
    target: str
    needs_runtime: bool = False


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What every command gets as Click's context object.

    `cwd` is the user's directory, also under `bazel run`, where the process starts elsewhere.
    """

    profile: Profile
    environ: Mapping[str, str]
    paths: PathSettings
    cwd: Path
