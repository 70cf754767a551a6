"""What the environment says about this installation, and what this build is."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lemon_core.paths import PathSettings
from lemon_core.version import __version__


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
            lemon_root=paths.expand(root) if root else None,
            dotenv_dir=paths.expand(dotenv) if dotenv else paths.state_dir,
            debug=environ.get("LEMON_DEBUG", "").lower() in ("1", "true") or level == "debug",
            node_name=environ.get("LEMON_GATEWAY_NODE_NAME", "").strip() or socket.gethostname(),
            production=environ.get("LEMON_ENV") == "prod" or bool(environ.get("RELEASE_NAME")),
        )


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """Which Lemon this is, and on what it runs."""

    version: str
    python: str
    platform: str


def build_info() -> BuildInfo:
    """This build."""
    return BuildInfo(__version__, platform.python_version(), platform.platform())


def _port(text: str | None, default: int) -> int:
    # str.isdecimal alone would let through digits of other scripts, which int() also reads.
    if text is None or not (text.strip().isascii() and text.strip().isdecimal()):
        return default
    value = int(text)
    return value if 1 <= value <= 65_535 else default
