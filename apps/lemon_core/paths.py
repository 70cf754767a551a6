"""Where Lemon keeps its files. Resolved per call: importing this module reads no environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PathSettings:
    """The file layout below one home directory; tests pass a temporary one.

    `state`, `config` and `checkpoints` move one part elsewhere.
    """

    home: Path
    state: Path | None = None
    config: Path | None = None
    checkpoints: Path | None = None

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None) -> PathSettings:
        """The layout for `HOME` of `environ` (default: this process's environment)."""
        env = os.environ if environ is None else environ
        home = env.get("HOME", "").strip()
        return cls(Path(home) if home else Path.home())

    @property
    def state_dir(self) -> Path:
        """`~/.lemon`, the home of all state."""
        return self.state or self.home / ".lemon"

    @property
    def config_file(self) -> Path:
        """The global configuration file."""
        return self.config or self.state_dir / "config.toml"

    @property
    def trusted_projects(self) -> Path:
        """Which projects may configure more than their safe keys; private (0600)."""
        return self.state_dir / "trusted_projects.json"

    @property
    def run_dir(self) -> Path:
        """Sockets and the runtime lock; its owner creates it with mode 0700."""
        return self.state_dir / "run"

    @property
    def runtime_lock(self) -> Path:
        """The file whose lock says that one runtime owns this state directory."""
        return self.run_dir / "runtime.lock"

    @property
    def gateway_socket(self) -> Path:
        """Default Unix socket of the gateway's ExecutionService."""
        return self.run_dir / "gateway.sock"

    @property
    def router_socket(self) -> Path:
        """Default Unix socket of the router's RouterService."""
        return self.run_dir / "router.sock"

    @property
    def store_dir(self) -> Path:
        """Default directory of the embedded databases."""
        return self.state_dir / "store"

    @property
    def checkpoint_dir(self) -> Path:
        """Snapshots of files before an agent changed them; private (0700) and capped."""
        return self.checkpoints or self.state_dir / "checkpoints"

    @property
    def versions_dir(self) -> Path:
        """Installed releases, one folder each, and the link `current` to the one in use."""
        return self.state_dir / "versions"

    @property
    def download_dir(self) -> Path:
        """Downloads on their way, private (0700); an update empties it."""
        return self.state_dir / "tmp"

    def agent_dir(self, environ: Mapping[str, str] | None = None) -> Path:
        """Home of the agent's own files (`LEMON_AGENT_DIR`, else `~/.lemon/agent`)."""
        env = os.environ if environ is None else environ
        configured = env.get("LEMON_AGENT_DIR", "").strip()
        return self.expand(configured) if configured else self.state_dir / "agent"

    def expand(self, text: str) -> Path:
        """`text` as a path, with a leading `~` meaning this layout's home."""
        if text == "~":
            return self.home
        return self.home / text[2:] if text.startswith("~/") else Path(text)


def project_state_dir(cwd: Path) -> Path:
    """Where the project that `cwd` is the root of keeps what belongs to it."""
    return cwd / ".lemon"


def project_config(cwd: Path) -> Path:
    """The configuration file of the project that `cwd` is the root of."""
    return project_state_dir(cwd) / "config.toml"


def node_roots(configured: str | None, paths: PathSettings) -> tuple[str, ...]:
    """The directories that this node lends to runs of other machines, links resolved.

    That is its default working directory: a peer's token opens no other part of the file system.
    """
    return (os.path.realpath(default_cwd(configured, paths)),)


def default_cwd(configured: str | None, paths: PathSettings) -> Path:
    """The working directory of a run that names none: configured, else home, else the process's.

    A configured directory that does not exist is passed over. Never raises.
    """
    if configured and configured.strip():
        candidate = paths.expand(configured.strip())
        if candidate.is_dir():
            return candidate
    return paths.home if paths.home.is_dir() else Path.cwd()
