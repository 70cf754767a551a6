"""Tools of apps that the platform does not name: they register a factory, the agent's owner asks.

One registry per runtime: `runtime.service(ToolRegistry.of)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from lemon_agent.run_record import normal_name
from lemon_agent.types import AgentTool
from lemon_core.logs import get_logger
from lemon_core.profiles import load_target

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime

log = get_logger(__name__)

SessionScope = Literal["main", "subagent"]


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What a factory may want to know about the session that its tool is for."""

    session_scope: SessionScope = "main"
    session_key: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    workspace_dir: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


ToolFactory = Callable[[str | None, ToolOptions], Awaitable[AgentTool | None]]
"""`await factory(cwd, options)`: the tool, or None where it is not offered."""


class ToolRegistry:
    """Factories by tool name, in the order of registering.

    Built-in tools win: a registered tool whose name the consumer has already is neither listed nor
    run.
    """

    def __init__(self) -> None:
        self._factories: dict[str, ToolFactory | str] = {}

    @classmethod
    def of(cls, runtime: Runtime) -> Self:
        """The registry of a runtime, for `runtime.service`."""
        return cls()

    def register(self, name: str, factory: ToolFactory | str) -> None:
        """Offer a tool. `factory` may be a dotted path (`package.module:function`), imported when
        it is first asked. Registering a name again replaces it in its place."""
        if not name.strip():
            raise ValueError("a tool needs a name")
        self._factories[name] = factory

    def unregister(self, name: str) -> None:
        """Offer the tool no longer."""
        self._factories.pop(name, None)

    def all(self) -> tuple[str, ...]:
        """The registered names."""
        return tuple(self._factories)

    async def available(
        self, taken: Collection[str], cwd: str | None, options: ToolOptions
    ) -> list[AgentTool]:
        """The tools that are offered here and whose names are not `taken`, in order.

        A factory that cannot be imported or raises is passed over with a warning.
        """
        names = {normal_name(name) for name in taken}
        offered: list[AgentTool] = []
        for name, factory in tuple(self._factories.items()):
            if normal_name(name) in names:
                continue
            tool = await _made(name, factory, cwd, options)
            # What the factory made may be called otherwise than what was registered.
            if tool is not None and normal_name(tool.name) not in names:
                names.add(normal_name(tool.name))
                offered.append(tool)
        return offered


async def _made(
    name: str, factory: ToolFactory | str, cwd: str | None, options: ToolOptions
) -> AgentTool | None:
    try:
        make = load_target(factory) if isinstance(factory, str) else factory
        tool = await make(cwd, options)  # type: ignore[operator]  # a path names a factory
    except Exception:  # one app's fault takes only its own tool away
        log.warning("tool_registry.not_offered", tool=name, exc_info=True)
        return None
    if tool is not None and not isinstance(tool, AgentTool):
        log.warning("tool_registry.not_a_tool", tool=name, got=type(tool).__name__)
        return None
    return tool
