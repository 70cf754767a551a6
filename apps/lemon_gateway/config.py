"""What the gateway takes from the configuration, and where a run works."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from lemon_core.config.gateway import GatewaySection
from lemon_core.journal import JournalLimits
from lemon_core.paths import PathSettings, node_roots
from lemon_core.workspace import is_inside
from lemon_gateway.errors import WorkspaceEscape
from lemon_gateway.requests import ExecutionRequest


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
    cwd = str(Path(workspace.cwd, paths.expand(asked))) if asked else workspace.cwd
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
