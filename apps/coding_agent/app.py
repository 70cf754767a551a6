"""The component: declares the tools' classes and says which model answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from coding_agent.agent_runtime import AgentProvider
from coding_agent.health import SessionsHealth
from coding_agent.model_info import DefaultModelInfo
from coding_agent.runner import Runner
from coding_agent.services import Services, services
from lemon_core.agent_runtime import AGENT_RUNTIME
from lemon_core.bridges import MODEL_INFO
from lemon_core.bus import SYSTEM_TOPIC, Subscription
from lemon_core.capabilities import doctor_runtime
from lemon_core.runtime import Runtime
from lemon_core.system_events import ConfigReloaded, SessionReset

HEALTH: Final = doctor_runtime("coding_agent")


@asynccontextmanager
async def answering(runtime: Runtime, shared: Services) -> AsyncIterator[None]:
    """The rest of the process may ask about this app for the block."""
    async with anyio.create_task_group() as tasks:
        provider = AgentProvider(shared, runtime.chat_states, tasks)
        health = SessionsHealth(shared.children.live)
        runtime.capabilities.register(AGENT_RUNTIME, provider)
        runtime.capabilities.register(HEALTH, health)
        try:
            yield
        finally:
            runtime.capabilities.clear(AGENT_RUNTIME, provider)
            runtime.capabilities.clear(HEALTH, health)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def following(runtime: Runtime, shared: Services) -> AsyncIterator[None]:
    """What happens to the runtime is followed for the block: changes of the configuration, and
    sessions that are started over, whose jobs and kernels end."""
    tools = shared.shared_tools

    async def follow(events: Subscription) -> None:
        while batch := await events.receive_batch():
            for event in batch:
                match event.payload:
                    case ConfigReloaded():
                        await tools.kernels.apply(runtime.config.runtime.tools.execute_code)
                    case SessionReset(session_key=session_key):
                        await tools.jobs.end_session(session_key)
                        await tools.kernels.end_session(session_key)

    with runtime.bus.subscribe(SYSTEM_TOPIC) as events:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, events)
            yield
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """The coding agent is up for the block; its executor refuses runs outside of it."""
    shared = runtime.service(services)
    shared.tools.declare(runtime.tool_classes)
    info = DefaultModelInfo(shared.models)
    runtime.capabilities.register(MODEL_INFO, info)
    shared.is_up = True
    try:
        # Jobs and tasks in the background end with the block.
        async with (
            shared.shared_tools.jobs.running(),
            shared.foreign_tools.wasm.pool.running(),
            shared.shared_tools.kernels.running(),
            following(runtime, shared),
            shared.children.running(
                lambda request, options, sink: Runner(request, options, sink, shared),
                recovers=not runtime.store.shared,
            ),
            answering(runtime, shared),
        ):
            yield
    finally:
        shared.is_up = False
        shared.foreign_tools.extensions.close()
        runtime.capabilities.clear(MODEL_INFO, info)
