"""The component: declares the tools' classes and says which model answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coding_agent.model_info import DefaultModelInfo
from coding_agent.services import services
from lemon_core.bridges import MODEL_INFO
from lemon_core.runtime import Runtime


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """The coding agent is up for the block; its executor refuses runs outside of it."""
    shared = runtime.service(services)
    shared.tools.declare(runtime.tool_classes)
    info = DefaultModelInfo(shared.models)
    runtime.capabilities.register(MODEL_INFO, info)
    shared.is_up = True
    try:
        yield
    finally:
        shared.is_up = False
        runtime.capabilities.clear(MODEL_INFO, info)
