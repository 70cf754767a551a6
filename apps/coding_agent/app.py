"""The component: declares the tools' classes and says which model answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from coding_agent.agent_runtime import AgentProvider
from coding_agent.model_info import DefaultModelInfo
from coding_agent.runner import Runner
from coding_agent.services import Services, services
from lemon_core.agent_runtime import AGENT_RUNTIME
from lemon_core.bridges import MODEL_INFO
from lemon_core.runtime import Runtime


@asynccontextmanager
async def answering(runtime: Runtime, shared: Services) -> AsyncIterator[None]:
    """The rest of the process may ask about this app for the block."""
    async with anyio.create_task_group() as tasks:
        provider = AgentProvider(shared, runtime.chat_states, tasks)
        runtime.capabilities.register(AGENT_RUNTIME, provider)
        try:
            yield
        finally:
            runtime.capabilities.clear(AGENT_RUNTIME, provider)
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
            shared.children.running(
                lambda request, options, sink: Runner(request, options, sink, shared),
                recovers=not runtime.store.shared,
            ),
            answering(runtime, shared),
        ):
            yield
    finally:
        shared.is_up = False
        runtime.capabilities.clear(MODEL_INFO, info)
