"""What all runs of a runtime share; made once, at the executor's or the component's first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coding_agent.approval import Approvals
from coding_agent.registry import ToolRegistry
from coding_agent.session_store import SessionFolder
from coding_agent.settings import AgentSettings
from coding_agent.tools.ripgrep import Ripgrep
from lemon_agent import SchemaCache
from lemon_ai import Context, EventStream, Model, StreamOptions
from lemon_core.bus import Bus
from lemon_core.tool_classes import ToolClassTable

if TYPE_CHECKING:
    from lemon_agent.runtime import ModelChoice
    from lemon_core.runtime import Runtime


class Models(Protocol):
    """What a run needs of lemon_agent's `ModelRuntime`."""

    async def choose_model(self, spec: str | None = None) -> ModelChoice: ...
    def stream(self, model: Model, context: Context, options: StreamOptions) -> EventStream: ...
    async def get_api_key(self, provider: str) -> str | None: ...


@dataclass(eq=False, slots=True)
class Services:
    """`is_up` while the component runs: outside of that no run may start."""

    settings: AgentSettings
    models: Models
    sessions: SessionFolder
    tools: ToolRegistry
    tool_classes: ToolClassTable
    schemas: SchemaCache
    ripgrep: Ripgrep
    approvals: Approvals
    bus: Bus
    now_ms: Callable[[], int]
    is_up: bool = False


def services(runtime: Runtime) -> Services:
    """The services of a runtime: `runtime.service(services)`."""
    from lemon_agent.runtime import model_runtime

    settings = AgentSettings.of(runtime.config, runtime.paths, runtime.environ)
    return Services(
        settings=settings,
        models=runtime.service(model_runtime),
        sessions=SessionFolder(settings.agent_dir, runtime.clock.now_ms),
        tools=ToolRegistry(settings.shell),
        tool_classes=runtime.tool_classes,
        schemas=SchemaCache(),
        ripgrep=Ripgrep(runtime.environ),
        approvals=runtime.approvals,
        bus=runtime.bus,
        now_ms=runtime.clock.now_ms,
    )
