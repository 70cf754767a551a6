"""What all runs of a runtime share; made once, at the executor's or the component's first use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coding_agent.approval import Approvals
from coding_agent.children import Children
from coding_agent.commands import Commands
from coding_agent.disclosure import SchemaSizes
from coding_agent.extensions.apis import ModelPort, WireApis
from coding_agent.extensions.finding import ExtensionSettings
from coding_agent.extensions.host import Extensions
from coding_agent.extensions.registration import ProviderRegistration
from coding_agent.extensions.report import ExtensionReport
from coding_agent.followups import Followups
from coding_agent.foreign_tools import ForeignTools
from coding_agent.jobs import Jobs
from coding_agent.kernels import Kernels
from coding_agent.live_runs import LiveRuns
from coding_agent.own_files import OwnFiles
from coding_agent.project_trust import ProjectTrust
from coding_agent.prompt_files import PromptFiles
from coding_agent.questions import Questions
from coding_agent.registry import ToolRegistry
from coding_agent.secret_guard import KnownSecrets
from coding_agent.session_store import SessionFolder
from coding_agent.settings import AgentSettings, secret_values
from coding_agent.tasks import TaskStore
from coding_agent.todos import Todos
from coding_agent.tools.delegate import Delegation
from coding_agent.tools.extensions import extensions_tool
from coding_agent.tools.questions import question_tools
from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.tools.tool_auth import wasm_tools
from coding_agent.tools.toolset import SharedTools
from coding_agent.wasm.host import WasmPlaces, WasmTools
from coding_agent.web import Web
from lemon_agent import SchemaCache
from lemon_agent.contributors import Contributors
from lemon_agent.tool_registry import ToolRegistry as RegisteredTools
from lemon_agent.types import WatchLoop
from lemon_ai import Context, EventStream, Model, StreamOptions
from lemon_core.address_guard import AddressGuard
from lemon_core.bridges import RouterBridge
from lemon_core.bus import Bus
from lemon_core.checkpoints import checkpoints
from lemon_core.clock import Clock
from lemon_core.tool_classes import ToolClassTable
from lemon_gateway.tools import GatewayTools

if TYPE_CHECKING:
    from lemon_agent.runtime import ModelChoice
    from lemon_core.config.model import LemonConfig
    from lemon_core.config.tools import Disclosure
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
    foreign_tools: ForeignTools
    extension_report: ExtensionReport
    commands: Commands
    secrets: KnownSecrets
    own_files: OwnFiles
    schema_sizes: SchemaSizes
    disclosure: Callable[[], Disclosure]
    tool_classes: ToolClassTable
    schemas: SchemaCache
    prompt_files: PromptFiles
    contributors: Contributors
    children: Children
    ripgrep: Ripgrep
    approvals: Approvals
    bus: Bus
    now_ms: Callable[[], int]
    clock: Clock
    watch: WatchLoop | None = None
    is_up: bool = False


def services(runtime: Runtime) -> Services:
    """The services of a runtime: `runtime.service(services)`."""
    from lemon_agent.observe import loop_watch
    from lemon_agent.runtime import model_runtime

    settings = AgentSettings.of(runtime.config, runtime.paths, runtime.environ)
    children = _children(runtime)
    models = runtime.service(model_runtime)
    is_trusted = ProjectTrust(runtime.paths)
    shared = _shared_tools(runtime, settings)
    foreign = _foreign_tools(
        runtime, settings, models, is_trusted, lambda: shared.web.guard, lambda: tools.names
    )
    report = ExtensionReport(
        foreign,
        {
            "tool_disclosure": lambda: runtime.config.runtime.tools.disclosure.model_dump(),
            "wasm": foreign.wasm.status,
        },
    )
    tools = ToolRegistry(
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
            extensions_tool(foreign, report),
            *wasm_tools(foreign.wasm, runtime.secrets, runtime.environ),
        ),
        lambda: runtime.config.runtime.tools.execute_code,
    )
    return Services(
        settings=settings,
        models=models,
        sessions=SessionFolder(settings.agent_dir, runtime.clock.now_ms),
        tools=tools,
        shared_tools=shared,
        lent_tools=runtime.service(GatewayTools.of),
        foreign_tools=foreign,
        extension_report=report,
        commands=Commands(settings.agent_dir, is_trusted),
        own_files=OwnFiles((settings.agent_dir / "workspace").resolve()),
        secrets=KnownSecrets(
            lambda: secret_values(runtime.environ, runtime.config),
            runtime.secrets,
            runtime.clock,
        ),
        schema_sizes=SchemaSizes(),
        disclosure=lambda: runtime.config.runtime.tools.disclosure,
        tool_classes=runtime.tool_classes,
        schemas=SchemaCache(),
        prompt_files=PromptFiles(settings.agent_dir / "workspace", settings.instruction_dirs),
        contributors=runtime.service(Contributors.of),
        children=children,
        ripgrep=Ripgrep(runtime.environ),
        approvals=runtime.approvals,
        bus=runtime.bus,
        now_ms=runtime.clock.now_ms,
        clock=runtime.clock,
        watch=runtime.service(loop_watch),
    )


def _foreign_tools(
    runtime: Runtime,
    settings: AgentSettings,
    models: WireApis,
    is_trusted: ProjectTrust,
    guard: Callable[[], AddressGuard],
    own: Callable[[], Collection[str]],
) -> ForeignTools:
    seen: tuple[LemonConfig, ExtensionSettings] | None = None

    def extension_settings() -> ExtensionSettings:
        nonlocal seen
        config = runtime.config
        if seen is None or seen[0] is not config:
            made = ExtensionSettings.of(config, runtime.paths, runtime.cwd, settings.agent_dir)
            # An equal one stays the same object: what is loaded is kept by it.
            seen = (config, seen[1] if seen is not None and seen[1] == made else made)
        return seen[1]

    extensions = Extensions(
        extension_settings,
        is_trusted,
        ProviderRegistration({"model": ModelPort(models)}),
        runtime.clock,
    )
    wasm = WasmTools(
        lambda: runtime.config.runtime.tools.wasm,
        WasmPlaces(runtime.paths, settings.agent_dir, runtime.cwd, is_trusted),
        runtime.secrets,
        guard,
        runtime.clock,
    )
    return ForeignTools(
        own,
        runtime.tool_classes,
        extensions,
        wasm,
        runtime.service(RegisteredTools.of),
        runtime.telemetry,
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
        kernels=Kernels(runtime.clock),
        todos=Todos(settings.agent_dir / "todos"),
        now_ms=runtime.clock.now_ms,
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
