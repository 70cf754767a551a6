"""Builds the router of a runtime and keeps it running.

Order: engine port, router, former admissions closed, then the service for outside clients. On the
way down new work is refused first, the ends that the gateway makes of live runs are relayed, and
the service stops last, so that every watcher sees the end of its run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskGroup

from lemon_core import ids
from lemon_core.bridges import ENGINE_RUNTIME, ROUTER, EngineRuntime, HealthReport
from lemon_core.errors import LemonError
from lemon_core.http.health import HealthChecks, serving_health, timestamp
from lemon_core.logs import get_logger
from lemon_core.nodes import holding_sessions, node_watch
from lemon_core.runtime import Runtime
from lemon_core.store.wrappers import POLICY_TABLES, SETTINGS
from lemon_router.admission import AdmissionStore
from lemon_router.config import engine_targets
from lemon_router.feedback import enabled, recording
from lemon_router.health import APP, CUSTOM_CHECKS, PORT_KEY, router_checks
from lemon_router.questions import Questions
from lemon_router.router import Router
from lemon_router.sessions import Sessions
from lemon_router.views import Views
from lemon_router.wiring import build_router

if TYPE_CHECKING:
    from lemon_router.shared_ownership import SharedOwnership

log = get_logger("lemon_router.app")


# Small and seldom written: mirrored, so that a submission waits for no read.
READ_FOR_EVERY_RUN = (*POLICY_TABLES.values(), SETTINGS)


class NoEngine(LemonError):
    """The router runs in the process with the gateway, and there is none."""

    code = "no_engine_runtime"

    def __init__(self) -> None:
        super().__init__(
            "router.engine_runtime is in_process, but the profile starts no gateway before it"
        )


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """The router, registered as `router` in the runtime's capabilities."""
    async with AsyncExitStack() as stack:
        for table in READ_FOR_EVERY_RUN:
            await runtime.store.register_cached_table(table)
        engine, forget_run = await _engine(runtime, stack)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        # After the service has stopped: cancelled earlier, it could not send what it still has.
        stack.callback(tasks.cancel_scope.cancel)
        router_id = ids.new_uuid()
        ownership = await _ownership(runtime, router_id, tasks, stack)
        router = build_router(
            runtime, engine, tasks, router_id=router_id, ownership=ownership, forget_run=forget_run
        )
        tasks.start_soon(router.journal.serve)
        tasks.start_soon(router.serve_sweep, runtime.config.router.admission_retention_ms)
        if ownership is not None:
            await stack.enter_async_context(ownership.of(router.others))
        # A one-shot command would end the runs that it resumed when it is done.
        await router.recover(runtime.runs, resume=runtime.serve)
        if enabled(runtime.config):
            await stack.enter_async_context(
                recording(
                    runtime.config,
                    runtime.paths,
                    runtime.bus,
                    runtime.clock,
                    sweeping=runtime.serve,
                )
            )
        runtime.capabilities.register(ROUTER, router, mode="if_unset")
        runtime.on_drain("refuse", router.refuse)
        runtime.on_drain("relay", router.drained)
        try:
            if runtime.serve:
                await _open_surfaces(runtime, router, engine, tasks, stack)
            yield
        finally:
            runtime.capabilities.clear(ROUTER, router)


async def _ownership(
    runtime: Runtime, router_id: str, tasks: TaskGroup, stack: AsyncExitStack
) -> SharedOwnership | None:
    """What tells which sessions are this router's; None when it is alone on its store."""
    locks = await stack.enter_async_context(holding_sessions(runtime.store, router_id))
    alive = node_watch(runtime.store, "router")
    if locks is None or alive is None:
        return None
    from lemon_router.shared_ownership import SharedOwnership  # for shared stores only

    return SharedOwnership(
        locks,
        runtime.store,
        runtime.clock,
        tasks,
        router_id=router_id,
        idle_ms=runtime.config.router.coordinator_idle_ms,
        # What a one-shot command adopted would end with it.
        watching=runtime.serve,
        alive=alive,
    )


async def _engine(
    runtime: Runtime, stack: AsyncExitStack
) -> tuple[EngineRuntime, Callable[[str], None]]:
    """What executes runs, the gateway in this process or the configured ones over gRPC; and what
    is told of every run that is over."""
    targets = engine_targets(runtime)
    if targets:
        from lemon_router.engines import open_engines  # grpc is heavy

        return await stack.enter_async_context(open_engines(runtime, targets))
    engine = runtime.capabilities.get(ENGINE_RUNTIME)
    if engine is None:
        raise NoEngine
    return cast(EngineRuntime, engine), lambda _: None


async def _open_surfaces(
    runtime: Runtime,
    router: Router,
    engine: EngineRuntime,
    tasks: TaskGroup,
    stack: AsyncExitStack,
) -> None:
    """What a server offers: agents to other apps, health and RouterService as configured."""
    from lemon_router.agents import AGENTS, Agents  # one-shot commands do without

    agents = Agents(router, runtime.store, runtime.runs, runtime.config.profiles, runtime.clock)
    runtime.capabilities.register(AGENTS, agents)
    stack.callback(runtime.capabilities.clear, AGENTS, agents)
    section = runtime.config.router
    node_id = section.rpc.node_id or runtime.env.node_name
    checks = HealthChecks(
        runtime.clock,
        router_checks(
            router,
            runtime.clock,
            run_process_limit=section.run_process_limit,
            running=lambda: not tasks.cancel_scope.cancel_called,
            registered=lambda: runtime.capabilities.get(ROUTER) is router,
        ),
        custom=lambda: runtime.capabilities.contributions(CUSTOM_CHECKS),
    )

    async def report() -> HealthReport:
        return HealthReport(
            app=APP,
            timestamp=timestamp(runtime.clock.now_ms()),
            checks=await checks.run(),
            node_id=node_id,
            stream_epoch=router.journal.epoch,
            bus_id=runtime.bus.id,
        )

    if section.health_enabled:
        host = section.health_ip
        port = await stack.enter_async_context(
            serving_health(report, host, section.health_port, key=PORT_KEY)
        )
        shown = f"[{host}]" if ":" in host else host
        runtime.listening["router health"] = f"http://{shown}:{port}/health"
    if section.rpc.enabled:
        from lemon_router.rpc_server import RouterParts, serving  # grpc is heavy

        questions = Questions(runtime.approvals, engine=engine, ended=router.is_over)
        stack.enter_context(questions.listening(runtime.bus))
        parts = RouterParts(
            router,
            Views(router, runtime.runs, runtime.session_settings),
            Sessions(
                router,
                runtime.runs,
                runtime.policies,
                runtime.session_settings,
                AdmissionStore(runtime.store),
                runtime.bus,
            ),
            questions,
            report,
        )
        address = await stack.enter_async_context(serving(runtime, parts))
        runtime.listening["router"] = address
        log.info("router.listening", address=address)
