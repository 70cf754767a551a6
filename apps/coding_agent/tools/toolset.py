"""What every tool is made from.

A `ToolDef` is fixed for the life of the process: its schema is serialised once. `bind` gives the
tool of one run, which costs no more than the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.workspace import PathGuard
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
from lemon_core.tool_classes import ToolClass
from lemon_core.tool_policy import ToolPolicy

if TYPE_CHECKING:
    from coding_agent.jobs import Jobs
    from coding_agent.kernels import Kernels
    from coding_agent.todos import Todos
    from coding_agent.web import Web
    from lemon_core.checkpoints import Checkpoints


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """`[runtime.shell]`; `path` None takes bash, or sh where there is none."""

    path: str | None = None
    command_prefix: str | None = None
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose run it is; `session_id` is the persisted one."""

    run_id: str
    session_id: str
    session_key: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class SharedTools:
    """What the tools of all runs share. `private_dir` is Lemon's own folder, which a command in a
    sandbox does not see."""

    checkpoints: Checkpoints
    jobs: Jobs
    kernels: Kernels
    todos: Todos
    web: Web
    now_ms: Callable[[], int]
    private_dir: Path


@dataclass(frozen=True, slots=True)
class ToolEnv:
    """What the tools of one run stand on.

    `spill_dir` takes output that is too large to show; it belongs to the session. `siblings` are
    the tools that the run has, for those that call others; they are there when the run begins.
    """

    guard: PathGuard
    policy: ToolPolicy
    environ: Mapping[str, str]
    spill_dir: Path
    shell: ShellSettings
    ripgrep: Ripgrep
    identity: RunIdentity
    shared: SharedTools
    siblings: Mapping[str, AgentTool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked about a call. Grants are kept for this very `action`; what is not
    grantable is asked about each time."""

    action: Mapping[str, object]
    is_grantable: bool = True


Execute = Callable[[ToolEnv, ToolCallContext], Awaitable[AgentToolResult]]


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool, and the classes under which a policy sees it; without classes it is harmless.

    `exclusive`: it changes something, so the other calls of the same answer run before or after it.
    `terminals`: it runs commands with these terminal backends, which the machine may forbid.
    `question`: what a person is asked about a call, where its arguments say that badly.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    execute: Execute
    classes: frozenset[ToolClass] = frozenset()
    exclusive: bool = False
    terminals: tuple[str, ...] = ()
    question: Callable[[Mapping[str, object]], Question] = Question

    def bind(self, env: ToolEnv) -> AgentTool:
        """The tool for one run."""
        return AgentTool(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            execute=partial(self.execute, env),
            exclusive=self.exclusive,
        )


def schema(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema object with these properties and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text_param(description: str) -> dict[str, Any]:
    """A string parameter."""
    return {"type": "string", "description": description}


def int_param(description: str, *, minimum: int | None = None) -> dict[str, Any]:
    """A whole number parameter."""
    bounds = {} if minimum is None else {"minimum": minimum}
    return {"type": "integer", **bounds, "description": description}


def bool_param(description: str) -> dict[str, Any]:
    """A yes-or-no parameter."""
    return {"type": "boolean", "description": description}
