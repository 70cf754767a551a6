"""The gateway as a component of a runtime: start order, surfaces, shutdown order.

Up: executor validated, configuration, lock and scheduler, health, ExecutionService; then the
runtime is registered for callers in the process. Down: refuse new work, end live runs, and once the
router has passed their ends on, everything in reverse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from lemon_core.bridges import ENGINE_RUNTIME
from lemon_core.logs import get_logger
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_gateway.config import GatewaySettings
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.health import CUSTOM_CHECKS, serving_health
from lemon_gateway.runtime import Runtime

log = get_logger("lemon_gateway.app")


@asynccontextmanager
async def component(runtime: CoreRuntime) -> AsyncIterator[None]:
    """The gateway of `runtime`; ready when entered.

    Raises `ExecutorError` for an executor that cannot be used, `PortUnusable`, and what a gRPC
    server raises about its address or its tokens.
    """
    executor = ConfiguredExecutor(runtime.profile.executor, runtime)
    executor.get()
    gateway = _gateway(runtime, executor)
    async with gateway.serving(), AsyncExitStack() as surfaces:
        runtime.on_drain("refuse", gateway.refuse)
        runtime.on_drain("end", gateway.end_all)
        if runtime.serve:
            await _open_surfaces(runtime, gateway, surfaces)
        runtime.capabilities.register(ENGINE_RUNTIME, gateway)
        try:
            yield
        finally:
            runtime.capabilities.clear(ENGINE_RUNTIME, gateway)


def _gateway(runtime: CoreRuntime, executor: ConfiguredExecutor) -> Runtime:
    return Runtime(
        executor=executor,
        records=runtime.runs,
        progress=runtime.progress,
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
    section = runtime.config.gateway
    if section.health_enabled:
        port = await surfaces.enter_async_context(
            serving_health(gateway.health, section.health_ip, section.health_port)
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
    gateway.extra_checks["rpc_server"] = lambda: (True, {"address": server.address})


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
