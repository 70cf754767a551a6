"""The contract of an extension, as far as Python can spell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from lemon_agent import AgentTool
from lemon_core.tool_classes import ToolClass

ProviderKind = Literal["model", "memory"]
HookName = Literal[
    "on_agent_start",
    "on_agent_end",
    "on_turn_start",
    "on_turn_end",
    "on_message_start",
    "on_message_end",
    "on_tool_execution_start",
    "on_tool_execution_end",
]
HOOKS: Final[tuple[HookName, ...]] = get_args(HookName)


@dataclass(frozen=True, slots=True)
class ExtensionTool:
    """A tool with the classes under which policies see it; without any it counts as harmless.

    A bare `AgentTool` counts as dangerous and external, as every tool does that nobody classed.
    """

    tool: AgentTool
    classes: frozenset[ToolClass] = frozenset()


@dataclass(frozen=True, slots=True)
class Provider:
    """Something that Lemon may use in the place of its own.

    `model`: `name` is a wire API for the `api` of a `[providers.<name>]` block and
    `implementation` speaks it (`events(request)`, lemon_ai's `Adapter`). `memory`:
    `implementation` has `put` and `search`.
    """

    type: ProviderKind
    name: str
    implementation: object


class Extension(Protocol):
    """What the module of an extension has as `EXTENSION`.

    Only these two are required. It may have these methods as well, each of them plain (not async),
    without effects, and done at once:

    `tools(cwd)` gives `AgentTool`s and `ExtensionTool`s for work in a directory, `hooks()` a
    mapping of `HookName`s to functions (plain or async), `capabilities()` words, `config_schema()`
    a JSON Schema, `providers()` `Provider`s.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
