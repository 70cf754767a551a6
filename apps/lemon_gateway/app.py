"""The gateway as a component of a runtime: start order, surfaces, shutdown order.

Up: executor validated, configuration, registries, lock and scheduler, health, ExecutionService,
ingress; then the runtime is registered for callers in the process. Down: refuse new work, end live
runs, and once the router has passed their ends on, everything in reverse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import anyio

from lemon_core.bindings import BindingResolver
from lemon_core.bridges import ENGINE_RUNTIME
from lemon_core.engine_info import ENGINE_INFO
from lemon_core.http.health import serving_health
from lemon_core.logs import get_logger
from lemon_core.nodes import holding_node
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_core.supervisor import Supervisor
from lemon_gateway.config import GatewaySettings, missing_projects
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.health import CUSTOM_CHECKS, PORT_KEY
from lemon_gateway.ingress import SurfaceTransport, listening, own_transports, without_effect
from lemon_gateway.runtime import Runtime
from lemon_gateway.transports import (
    COMMANDS,
    INGRESS,
    TRANSPORTS,
    CancelCommand,
    Command,
    CommandRegistry,
    GatewayInfo,
    Ingress,
    Transport,
    TransportRegistry,
    TransportSupervisor,
)

log = get_logger("lemon_gateway.app")


@asynccontextmanager
async def component(runtime: CoreRuntime) -> AsyncIterator[None]:
    """The gateway of `runtime`; ready when entered.

    Raises `ExecutorError` for an executor that cannot be used, `InvalidName` for a transport or a
    command, `PortUnusable`, and what a gRPC server raises about its address or its tokens.
    """
    executor = ConfiguredExecutor(runtime.profile.executor, runtime)
    executor.get()
    gateway = _gateway(runtime, executor)
    own = await own_transports(runtime) if runtime.serve else ()
    ingress = _ingress(runtime, gateway, own)
    info = GatewayInfo(ingress.transports, runtime.config.gateway)
    async with gateway.serving(), AsyncExitStack() as surfaces:
        runtime.on_drain("refuse", gateway.refuse)
        runtime.on_drain("end", gateway.end_all)
        if runtime.serve:
            await _open_surfaces(runtime, gateway, surfaces)
            await surfaces.enter_async_context(_serving_ingress(runtime, ingress, own))
        runtime.capabilities.register(ENGINE_RUNTIME, gateway)
        runtime.capabilities.register(ENGINE_INFO, info)
        try:
            yield
        finally:
            runtime.capabilities.clear(ENGINE_INFO, info)
            runtime.capabilities.clear(ENGINE_RUNTIME, gateway)


def _ingress(runtime: CoreRuntime, gateway: Runtime, own: tuple[SurfaceTransport, ...]) -> Ingress:
    """The gateway's own and what was contributed, checked; only a server takes anything from it."""
    section, contributed = runtime.config.gateway, runtime.capabilities.contributions
    # The registry is untyped: what is contributed under these keys says by itself what it is.
    transports = cast("tuple[Transport, ...]", contributed(TRANSPORTS))
    commands = cast("tuple[Command, ...]", contributed(COMMANDS))
    bindings = BindingResolver.of(section, paths=runtime.paths, changes=runtime.project_bindings)
    return Ingress(
        TransportRegistry((*own, *transports), section),
        CommandRegistry((CancelCommand(gateway.cancel_by_progress_msg), *commands)),
        bindings,
    )


@asynccontextmanager
async def _serving_ingress(
    runtime: CoreRuntime, ingress: Ingress, own: tuple[SurfaceTransport, ...]
) -> AsyncIterator[None]:
    """Serve the enabled transports if the configuration wants any; warn of what cannot work.

    Raises `UnprotectedBind` and `PortUnusable` for the gateway's own.
    """
    section = runtime.config.gateway
    for text in (
        *without_effect(section),
        *ingress.transports.problems(),
        *missing_projects(section, runtime.paths),
    ):
        log.warning("gateway.config_without_effect", problem=text)
        runtime.warnings = (*runtime.warnings, text)
    if not section.gateway_ingress_enabled:
        yield
        return
    with listening(own):
        runtime.listening.update({transport.id: transport.address for transport in own})
        async with _serving(runtime, ingress):
            yield


@asynccontextmanager
async def _serving(runtime: CoreRuntime, ingress: Ingress) -> AsyncIterator[None]:
    runtime.capabilities.register(INGRESS, ingress)
    supervisor = TransportSupervisor(Supervisor(runtime.clock))
    async with anyio.create_task_group() as tasks:
        for transport in ingress.transports.enabled():
            tasks.start_soon(supervisor.run, transport)
        try:
            yield
        finally:
            runtime.capabilities.clear(INGRESS, ingress)
            tasks.cancel_scope.cancel()


def _gateway(runtime: CoreRuntime, executor: ConfiguredExecutor) -> Runtime:
    return Runtime(
        executor=executor,
        records=runtime.runs,
        progress=runtime.progress,
        approvals=runtime.approvals,
        bus=runtime.bus,
        telemetry=runtime.telemetry,
        clock=runtime.clock,
        paths=runtime.paths,
        settings=GatewaySettings.of_section(
            runtime.config.gateway, runtime.env.node_name, runtime.paths
        ),
        custom_checks=lambda: runtime.capabilities.contributions(CUSTOM_CHECKS),
        introspection=runtime.introspection,
    )


async def _open_surfaces(runtime: CoreRuntime, gateway: Runtime, surfaces: AsyncExitStack) -> None:
    """Health and ExecutionService, as far as they are configured; addresses go to the gateway."""
    # First: whoever may call this gateway must be able to tell that it lives.
    await surfaces.enter_async_context(holding_node(runtime.store, gateway.node_id))
    section = runtime.config.gateway
    if section.health_enabled:
        surfaces.enter_context(gateway.metrics.counting(runtime.telemetry))
        port = await surfaces.enter_async_context(
            serving_health(
                gateway.health,
                section.health_ip,
                section.health_port,
                key=PORT_KEY,
                metrics=gateway.metrics.page,
            )
        )
        gateway.addresses["health"] = f"http://{_host(section.health_ip)}:{port}/health"
    if section.rpc.enabled:
        await _serve_rpc(runtime, gateway, surfaces)
    runtime.listening.update(
        {"gateway" if name == "rpc" else name: text for name, text in gateway.addresses.items()}
    )
    log.info("gateway.listening", **gateway.addresses)


async def _serve_rpc(runtime: CoreRuntime, gateway: Runtime, surfaces: AsyncExitStack) -> None:
    # grpc takes a while to import, and one-shot commands do without it.
    from lemon_gateway.rpc_server import serving_configured

    server = await surfaces.enter_async_context(serving_configured(runtime, gateway))
    gateway.addresses["rpc"] = server.address
    gateway.metrics.open_streams = server.open_streams
    gateway.extra_checks["rpc_server"] = lambda: (True, {"address": server.address})


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
