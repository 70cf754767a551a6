"""The component: the models of the runtime live as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lemon_agent.observe import attach
from lemon_agent.runtime import model_runtime
from lemon_core.runtime import Runtime


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """Close the connections and the embedded model with the runtime; opens nothing by itself."""
    async with runtime.service(model_runtime):
        with attach(runtime):
            yield
