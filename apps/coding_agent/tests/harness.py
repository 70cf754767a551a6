"""Tools in a folder, called as the loop calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from coding_agent.jobs import Jobs
from coding_agent.kernels import Kernels
from coding_agent.todos import Todos
from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.tools.toolset import (
    RunIdentity,
    SharedTools,
    ShellSettings,
    ToolDef,
    ToolEnv,
)
from coding_agent.web import Web
from coding_agent.workspace import PathGuard
from lemon_agent import AbortSignal, AgentToolResult, ToolCallContext
from lemon_core.bus import Bus
from lemon_core.checkpoint_folder import CheckpointFolder
from lemon_core.checkpoints import Checkpoints
from lemon_core.config.tools import Web as WebSettings
from lemon_core.execution_context import Workspace
from lemon_core.introspection import Introspection
from lemon_core.store import Store
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import FakeClock, scrubbed_environ
from lemon_core.tool_policy import ToolPolicy


def tool_env(
    folder: Path,
    *,
    policy: ToolPolicy | None = None,
    read_only: bool = False,
    roots: Sequence[Path] = (),
    shell: ShellSettings | None = None,
) -> ToolEnv:
    """A run's surroundings in `folder`, which is the home as well."""
    cwd = folder.resolve()
    workspace = Workspace.at(str(cwd), [str(root) for root in roots], read_only=read_only)
    environ = scrubbed_environ(cwd)
    kept = kept_in(cwd)
    return ToolEnv(
        guard=PathGuard(cwd, cwd, workspace, readable=(kept.resolve() / "spill",)),
        policy=policy or ToolPolicy.full_access(),
        environ=environ,
        spill_dir=kept.resolve() / "spill",
        shell=shell or ShellSettings(),
        ripgrep=Ripgrep(environ),
        identity=RunIdentity("run_1", "sess_1", "agent:default:main", "default"),
        shared=shared_tools(kept.resolve()),
    )


def kept_in(folder: Path) -> Path:
    """Where the tools of `folder` keep what is theirs: beside it."""
    return folder.parent / f"{folder.name}-kept"


def shared_tools(kept: Path, settings: WebSettings | None = None) -> SharedTools:
    """What all runs share, kept below `kept`."""
    clock, bus = FakeClock(), Bus()
    introspection = Introspection(Store(MemoryBackend()), clock)
    folder = CheckpointFolder(kept / "checkpoints")
    return SharedTools(
        checkpoints=Checkpoints(folder, clock, bus, introspection),
        jobs=Jobs(clock.now_ms),
        kernels=Kernels(clock),
        todos=Todos(kept / "todos"),
        now_ms=clock.now_ms,
        web=Web(settings or WebSettings(), no_secret, clock),
        private_dir=kept,
    )


async def no_secret(_: str) -> str | None:
    return None


@dataclass
class Call:
    """One call of a tool, with the progress that it reported."""

    params: dict[str, Any]
    signal: AbortSignal = field(default_factory=AbortSignal)
    updates: list[AgentToolResult] = field(default_factory=list)
    updated: anyio.Event = field(default_factory=anyio.Event)

    def on_update(self, result: AgentToolResult) -> None:
        self.updates.append(result)
        self.updated.set()

    async def run(self, tool: ToolDef, env: ToolEnv) -> AgentToolResult:
        context = ToolCallContext("call_1", self.params, self.signal, self.on_update)
        with anyio.fail_after(10):
            return await tool.execute(env, context)


async def call(tool: ToolDef, env: ToolEnv, **params: Any) -> AgentToolResult:
    """The result of one call."""
    return await Call(params).run(tool, env)


def details(result: AgentToolResult) -> dict[str, Any]:
    assert isinstance(result.details, dict)
    return result.details


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended; nobody may have waited for it yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text(encoding="utf-8").split()]
