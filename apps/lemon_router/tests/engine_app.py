"""A component that registers the scripted gateway, for tests that boot a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lemon_core.bridges import ENGINE_RUNTIME
from lemon_core.runtime import Runtime
from lemon_router.tests.scripted_engine import ScriptedEngine


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    runtime.capabilities.register(ENGINE_RUNTIME, ScriptedEngine(runtime.bus))
    yield
