"""Builds the router of a runtime and keeps it running.

Order: engine port, router, former admissions closed, then the service for outside clients. On the
way down new work is refused first, the ends that the gateway makes of live runs are relayed, and
the service stops last, so that every watcher sees the end of its run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import anyio
from anyio.abc import TaskGroup

from lemon_core import ids
from lemon_core.bridges import ENGINE_RUNTIME, ROUTER, EngineRuntime
from lemon_core.errors import LemonError
from lemon_core.journal import Journal, JournalLimits
from lemon_core.logs import get_logger
from lemon_core.runtime import Runtime
from lemon_core.store.wrappers import POLICY_TABLES, SETTINGS
from lemon_router.admission import AdmissionStore
from lemon_router.builder import Builder
from lemon_router.config import engine_target, serves_rpc
from lemon_router.requests import Submission
from lemon_router.router import Router
from lemon_router.views import Views

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
        engine = await _engine(runtime, stack)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        # After the service has stopped: cancelled earlier, it could not send what it still has.
        stack.callback(tasks.cancel_scope.cancel)
        router = build_router(runtime, engine, tasks)
        tasks.start_soon(router.journal.serve)
        tasks.start_soon(router.serve_sweep, runtime.config.router.admission_retention_ms)
        await router.close_former(runtime.runs)
        runtime.capabilities.register(ROUTER, router, mode="if_unset")
        runtime.on_drain("refuse", router.refuse)
        runtime.on_drain("relay", router.drained)
        try:
            if serves_rpc(runtime):
                from lemon_router.rpc_server import serving  # grpc is heavy: only for servers

                views = Views(router, runtime.runs, runtime.session_settings)
                address = await stack.enter_async_context(serving(runtime, router, views))
                runtime.listening["router"] = address
                log.info("router.listening", address=address)
            yield
        finally:
            runtime.capabilities.clear(ROUTER, router)


def build_router(runtime: Runtime, engine: EngineRuntime, tasks: TaskGroup) -> Router:
    """The router's objects, wired to the runtime's."""
    journal = Journal(
        epoch=ids.new_uuid(),
        clock=runtime.clock,
        limits=JournalLimits.of_section(runtime.config.router.rpc),
        on_drop=lambda run_id: router.forget_owner(run_id),
    )

    def on_submit(submission: Submission) -> None:
        runtime.telemetry.emit(
            "lemon.run.submit",
            {"count": 1},
            {"session_key": submission.session_key, "engine": "lemon"},
        )

    router = Router(
        builder=Builder(
            config=runtime.config,
            paths=runtime.paths,
            chat_states=runtime.chat_states,
            settings=runtime.session_settings,
            policies=runtime.policies,
        ),
        admissions=AdmissionStore(runtime.store),
        engine=engine,
        journal=journal,
        bus=runtime.bus,
        clock=runtime.clock,
        tasks=tasks,
        run_process_limit=runtime.config.router.run_process_limit,
        on_submit=on_submit,
    )
    return router


async def _engine(runtime: Runtime, stack: AsyncExitStack) -> EngineRuntime:
    target = engine_target(runtime)
    if target is not None:
        from lemon_core.rpc.engine_client import GrpcEngineRuntime  # grpc is heavy

        return await stack.enter_async_context(
            GrpcEngineRuntime(target, bus=runtime.bus, clock=runtime.clock)
        )
    engine = runtime.capabilities.get(ENGINE_RUNTIME)
    if engine is None:
        raise NoEngine
    return cast(EngineRuntime, engine)
