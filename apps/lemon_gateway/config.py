"""What the gateway takes from the configuration, and which directories that names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lemon_core.config.gateway import GatewaySection
from lemon_core.journal import JournalLimits
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings, node_roots
from lemon_core.workspace import is_inside
from lemon_gateway.errors import WorkspaceEscape
from lemon_gateway.requests import ExecutionRequest

log = get_logger("lemon_gateway.config")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and switches of one gateway; times are milliseconds.

    `engine_lock_max_hold_ms` None reports no over-age owner; `engine_lock_reap_interval_ms` None is
    derived from it.
    """

    node_id: str = "local"
    max_concurrent_runs: int = 2
    require_engine_lock: bool = True
    engine_lock_timeout_ms: int = 60_000
    engine_lock_max_hold_ms: int | None = 300_000
    engine_lock_reap_interval_ms: int | None = None
    journal: JournalLimits = field(default_factory=JournalLimits)
    # Where runs of peers on other machines may work; None is anywhere.
    peer_roots: tuple[str, ...] | None = None

    @classmethod
    def of_section(
        cls, section: GatewaySection, node_name: str, paths: PathSettings
    ) -> GatewaySettings:
        """The settings in `[gateway]`; `node_name` is core's name of this node."""
        rpc = section.rpc
        return cls(
            node_id=rpc.node_id or node_name,
            peer_roots=node_roots(section.default_cwd, paths),
            max_concurrent_runs=section.max_concurrent_runs,
            require_engine_lock=section.require_engine_lock,
            engine_lock_timeout_ms=section.engine_lock_timeout_ms,
            engine_lock_max_hold_ms=section.engine_lock_max_hold_ms,
            engine_lock_reap_interval_ms=section.engine_lock_reap_interval_ms,
            journal=JournalLimits.of_section(rpc),
        )


def working_directory(request: ExecutionRequest, paths: PathSettings) -> str:
    """The real path of the directory a run works in.

    What the request names, `~` meaning the home and relative paths counting from the context's
    directory; without one, the context's directory. Raises `WorkspaceEscape` when that lies outside
    the context's roots, links resolved.
    """
    workspace = request.execution_context.workspace
    asked = (request.cwd or "").strip()
    cwd = asked or workspace.cwd
    if not cwd.startswith("/"):
        cwd = str(Path(workspace.cwd, paths.expand(asked)))
    try:
        real = os.path.realpath(cwd)
        # Mostly the directory is the root, and is then resolved once.
        roots = (real if root == cwd else os.path.realpath(root) for root in workspace.roots)
        inside = any(is_inside(real, root) for root in roots)
    except ValueError:  # a null character
        inside = False
    if not inside:
        raise WorkspaceEscape(cwd, workspace.roots)
    return real


def workspace_dir(
    configured: str | Callable[[], str | None] | None,
    paths: PathSettings,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """The directory for files that belong to a chat and to no project.

    What is configured (a path, or who knows it), else `workspace` in the agent's own directory,
    where relative paths begin too. Who does not know it costs a warning and gets the default.
    """
    agent_dir = paths.agent_dir(environ)
    try:
        named = configured() if callable(configured) else configured
        text = (named or "").strip()
    except Exception as exc:  # a caller's function may raise anything; a file still needs a place
        log.warning("config.workspace_unknown", error=type(exc).__name__)
        text = ""
    return agent_dir / paths.expand(text) if text else agent_dir / "workspace"


def missing_projects(section: GatewaySection, paths: PathSettings) -> tuple[str, ...]:
    """One line for each project whose root is no directory, for whoever starts the server."""
    return tuple(
        f"gateway.projects.{name}.root: {project.root} is no directory"
        for name, project in section.projects.items()
        if not paths.expand(project.root).is_dir()
    )
