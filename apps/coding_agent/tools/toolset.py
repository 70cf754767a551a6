"""What every tool is made from.

A `ToolDef` is fixed for the life of the process: its schema is serialised once. `bind` gives the
tool of one run, which costs no more than the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.workspace import PathGuard
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
from lemon_core.tool_classes import ToolClass
from lemon_core.tool_policy import ToolPolicy


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """`[runtime.shell]`; `path` None takes bash, or sh where there is none."""

    path: str | None = None
    command_prefix: str | None = None
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ToolEnv:
    """What the tools of one run stand on.

    `spill_dir` takes output that is too large to show; it belongs to the session.
    """

    guard: PathGuard
    policy: ToolPolicy
    environ: Mapping[str, str]
    spill_dir: Path
    shell: ShellSettings
    ripgrep: Ripgrep


Execute = Callable[[ToolEnv, ToolCallContext], Awaitable[AgentToolResult]]


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool, and the classes under which a policy sees it; without classes it is harmless.

    `exclusive`: it changes something, so the other calls of the same answer run before or after it.
    `terminal`: it runs commands with this terminal backend, which the machine may forbid.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    execute: Execute
    classes: frozenset[ToolClass] = frozenset()
    exclusive: bool = False
    terminal: str | None = None

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
