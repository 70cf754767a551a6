"""The gateways of a router over gRPC: one client, or several behind a choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from lemon_core.bridges import EngineRuntime
from lemon_core.nodes import node_watch
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.surface import engine_access
from lemon_core.runtime import Runtime
from lemon_router.admission import AdmissionStore
from lemon_router.targets import EngineTargets


@asynccontextmanager
async def open_engines(
    runtime: Runtime, targets: Sequence[str]
) -> AsyncIterator[tuple[EngineRuntime, Callable[[str], None]]]:
    """What executes runs at `targets`, for the block, and what is told of every run that is over.

    Raises what `engine_access` raises.
    """
    token, tls = await engine_access(runtime)
    async with AsyncExitStack() as stack:
        clients = {
            target: await stack.enter_async_context(
                GrpcEngineRuntime(
                    target, bus=runtime.bus, clock=runtime.clock, token=token, tls=tls
                )
            )
            for target in targets
        }
        if len(targets) == 1:
            yield clients[targets[0]], lambda _: None
            return
        engines = _several(runtime, clients)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engines.serve)
            yield engines, engines.forget
            tasks.cancel_scope.cancel()


def _several(runtime: Runtime, clients: dict[str, GrpcEngineRuntime]) -> EngineTargets:
    admissions = AdmissionStore(runtime.store)

    async def node_of(run_id: str) -> str | None:
        record = await admissions.get(run_id)
        return None if record is None else record.node_id

    async def run_of(approval_id: str) -> str | None:
        # Several gateways share their store, so their questions are in this node's too.
        question = await runtime.approvals.load_pending(approval_id)
        return None if question is None else question.run_id

    return EngineTargets(
        clients,
        clock=runtime.clock,
        node_of=node_of,
        run_of=run_of,
        alive=node_watch(runtime.store),
    )
