"""Tools that the gateway lends to a run: what its session may use, and no more.

Whoever has such a tool (an inbox, a scheduler, a channel) offers a source; the executor asks for
the tools of a session when it assembles a run, and subjects them to the run's policy like its own.
One registry per runtime: `runtime.service(GatewayTools.of)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

from lemon_core.execution_context import ExecutionContext
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_agent import AgentTool
    from lemon_core.runtime import Runtime

log = get_logger("lemon_gateway.tools")

ToolSource = Callable[[str, ExecutionContext], "Iterable[AgentTool]"]
"""`source(session_key, context)`: the tools that this session gets; none where they make no sense.

The source classifies its tools in `runtime.tool_classes`: unclassified ones count as dangerous.
"""


class GatewayTools:
    """Sources of tools, asked in the order in which they were offered."""

    def __init__(self) -> None:
        self._sources: dict[str, ToolSource] = {}

    @classmethod
    def of(cls, runtime: Runtime) -> Self:
        """The registry of a runtime, for `runtime.service`."""
        return cls()

    def offer(self, name: str, source: ToolSource) -> None:
        """Ask `source` too from now on; one offered under the same name before is replaced."""
        self._sources[name] = source

    def withdraw(self, name: str) -> None:
        """Ask the source of that name no more."""
        self._sources.pop(name, None)

    def for_session(self, session_key: str, context: ExecutionContext) -> list[AgentTool]:
        """The tools of a session's run. A source that fails is passed over; of two tools with one
        name the first counts."""
        tools: dict[str, AgentTool] = {}
        for name, source in tuple(self._sources.items()):
            try:
                offered = list(source(session_key, context))
            except Exception:  # one source's fault takes only its own tools away
                log.exception("tools.source_failed", source=name)
                continue
            for tool in offered:
                tools.setdefault(tool.name, tool)
        return list(tools.values())
