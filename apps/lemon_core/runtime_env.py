"""What the environment says about this installation, and what this build is."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from lemon_core.paths import PathSettings
from lemon_core.version import __version__

GIT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RuntimeEnv:
    """Ports and marks that come from environment variables alone."""

    control_port: int
    web_port: int
    sim_port: int
    lemon_root: Path | None
    dotenv_dir: Path
    debug: bool
    node_name: str
    production: bool

    @classmethod
    def resolve(cls, environ: Mapping[str, str], paths: PathSettings) -> RuntimeEnv:
        """The marks in `environ`; a port that is no port reads as its default."""
        root, dotenv = environ.get("LEMON_PATH", ""), environ.get("LEMON_DOTENV_DIR", "")
        level = environ.get("LEMON_LOG_LEVEL", "").lower()
        return cls(
            control_port=_port(environ.get("LEMON_CONTROL_PLANE_PORT"), 4040),
            web_port=_port(environ.get("LEMON_WEB_PORT"), 4080),
            sim_port=_port(environ.get("LEMON_SIM_UI_PORT"), 4090),
            lemon_root=paths.expand(root) if root else source_root(),
            dotenv_dir=paths.expand(dotenv) if dotenv else paths.state_dir,
            debug=environ.get("LEMON_DEBUG", "").lower() in ("1", "true") or level == "debug",
            node_name=environ.get("LEMON_GATEWAY_NODE_NAME", "").strip() or socket.gethostname(),
            production=environ.get("LEMON_ENV") == "prod" or bool(environ.get("RELEASE_NAME")),
        )


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """Which Lemon this is, and on what it runs; the git facts are None outside a source tree."""

    version: str
    python: str
    platform: str
    channel: str = "stable"
    mode: Literal["release", "source"] = "release"
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


def build_info(
    *, channel: str = "stable", root: Path | None = None, program: Path | None = None
) -> BuildInfo:
    """This build; `root` (of a source tree) is asked for its git facts, which runs git.

    `program`, a file of Lemon's own (default: this one), leads to what its package says of itself.
    """
    said = _said_by_package(Path(__file__) if program is None else program)
    info = BuildInfo(
        __version__,
        platform.python_version(),
        platform.platform(),
        said.get("channel", channel),
        commit=said.get("commit"),
    )
    if root is None or not (root / ".git").exists():
        return info
    return replace(_with_git(info, root), mode="source")


def source_root() -> Path | None:
    """The source tree that this module runs from; None in an installed Lemon."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "MODULE.bazel").is_file() else None


def _said_by_package(program: Path) -> dict[str, str]:
    """The facts in `release.json` beside `lib/app`; none outside of a package."""
    app, lib, package = program.resolve().parents[1:4]
    if (app.name, lib.name) != ("app", "lib"):
        return {}
    try:
        raw = json.loads((package / "release.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: text for name, text in raw.items() if isinstance(text, str) and text}


def _with_git(info: BuildInfo, root: Path) -> BuildInfo:
    import subprocess  # only for this

    # No lock on the index: somebody may be committing.
    command = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2"]
    # Inside a hook, git's variables name another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            [*command, "--branch"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return info
    lines = done.stdout.splitlines()
    heads = [line[2:].partition(" ") for line in lines if line.startswith("# ")]
    facts = {name: value for name, _, value in heads}
    commit = facts.get("branch.oid", "")
    branch = facts.get("branch.head", "")
    return replace(
        info,
        commit=None if commit in ("", "(initial)") else commit,
        branch=None if branch in ("", "(detached)") else branch,
        dirty=len(heads) < len(lines),
    )


def _port(text: str | None, default: int) -> int:
    # str.isdecimal alone would let through digits of other scripts, which int() also reads.
    if text is None or not (text.strip().isascii() and text.strip().isdecimal()):
        return default
    value = int(text)
    return value if 1 <= value <= 65_535 else default
