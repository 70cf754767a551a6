"""What all runs of a runtime share; made once, at the executor's or the component's first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coding_agent.approval import Approvals
from coding_agent.children import Children
from coding_agent.followups import Followups
from coding_agent.jobs import Jobs
from coding_agent.live_runs import LiveRuns
from coding_agent.prompt_files import PromptFiles
from coding_agent.questions import Questions
from coding_agent.registry import ToolRegistry
from coding_agent.session_store import SessionFolder
from coding_agent.settings import AgentSettings
from coding_agent.tasks import TaskStore
from coding_agent.todos import Todos
from coding_agent.tools.delegate import Delegation
from coding_agent.tools.questions import question_tools
from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.tools.toolset import SharedTools
from coding_agent.web import Web
from lemon_agent import SchemaCache
from lemon_agent.contributors import Contributors
from lemon_agent.types import WatchLoop
from lemon_ai import Context, EventStream, Model, StreamOptions
from lemon_core.bridges import RouterBridge
from lemon_core.bus import Bus
from lemon_core.checkpoints import checkpoints
from lemon_core.tool_classes import ToolClassTable
from lemon_gateway.tools import GatewayTools

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
    shared_tools: SharedTools
    lent_tools: GatewayTools
    tool_classes: ToolClassTable
    schemas: SchemaCache
    prompt_files: PromptFiles
    contributors: Contributors
    children: Children
    ripgrep: Ripgrep
    approvals: Approvals
    bus: Bus
    now_ms: Callable[[], int]
    watch: WatchLoop | None = None
    is_up: bool = False


def services(runtime: Runtime) -> Services:
    """The services of a runtime: `runtime.service(services)`."""
    from lemon_agent.observe import loop_watch
    from lemon_agent.runtime import model_runtime

    settings = AgentSettings.of(runtime.config, runtime.paths, runtime.environ)
    children = _children(runtime)
    return Services(
        settings=settings,
        models=runtime.service(model_runtime),
        sessions=SessionFolder(settings.agent_dir, runtime.clock.now_ms),
        tools=ToolRegistry(
            settings.shell,
            settings.web,
            (
                *Delegation(
                    children,
                    frozenset(runtime.config.profiles),
                    settings.agent_dir,
                    runtime.config.runtime.async_followups.default_queue_mode,
                ).tools(),
                *question_tools(Questions(children, runtime.bus, runtime.clock)),
            ),
        ),
        shared_tools=_shared_tools(runtime, settings),
        lent_tools=runtime.service(GatewayTools.of),
        tool_classes=runtime.tool_classes,
        schemas=SchemaCache(),
        prompt_files=PromptFiles(settings.agent_dir / "workspace", settings.instruction_dirs),
        contributors=runtime.service(Contributors.of),
        children=children,
        ripgrep=Ripgrep(runtime.environ),
        approvals=runtime.approvals,
        bus=runtime.bus,
        now_ms=runtime.clock.now_ms,
        watch=runtime.service(loop_watch),
    )


def _shared_tools(runtime: Runtime, settings: AgentSettings) -> SharedTools:
    cache = settings.web.cache
    folder = (
        runtime.paths.expand(cache.path)
        if cache.path is not None
        else settings.state_dir / "cache" / "web_tools"
    )
    return SharedTools(
        checkpoints=runtime.service(checkpoints),
        jobs=Jobs(runtime.clock.now_ms),
        todos=Todos(settings.agent_dir / "todos"),
        web=Web(
            settings.web,
            runtime.secrets.fetch_value,
            runtime.clock,
            folder if cache.persistent else None,
        ),
        private_dir=settings.state_dir,
    )


def _children(runtime: Runtime) -> Children:
    config = runtime.config.runtime
    store, live = TaskStore(runtime.store, runtime.clock), LiveRuns()
    router = RouterBridge(runtime.capabilities)
    return Children(
        store,
        Followups(store, live, router, runtime.clock),
        live,
        router,
        runtime.bus,
        runtime.clock,
        max_children=config.budget_defaults.max_children,
        lane=config.lanes.subagent,
    )
