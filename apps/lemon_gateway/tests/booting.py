"""The gateway's component in a real runtime, with a scripted executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lemon_core.boot import boot
from lemon_core.bridges import ENGINE_RUNTIME
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_core.testing import scrubbed_environ
from lemon_gateway.executor import RunHandle, RunOptions, Sink
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.runtime import Runtime
from lemon_gateway.tests.fakes import ScriptedExecutor

HERE = "lemon_gateway.tests.booting"


class BootedExecutor(ScriptedExecutor):
    """What the profile of these tests names; it is built with the runtime."""

    def __init__(self, runtime: CoreRuntime) -> None:
        super().__init__()
        self.runtime = runtime

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        assert self.runtime.bus.running
        return await super().start_run(request, opts, sink)


def profile(executor: str | None = f"{HERE}:BootedExecutor") -> Profile:
    """The gateway alone."""
    return Profile("test", components=("lemon_gateway.app:component",), executor=executor)


@asynccontextmanager
async def booted(
    paths: PathSettings,
    section: Mapping[str, object] | None = None,
    *,
    serve: bool = True,
    used: Profile | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[CoreRuntime, Runtime]]:
    """A runtime and its gateway; `section` are keys of `[gateway]`."""
    gateway: dict[str, object] = {"health_port": 0, "rpc": {"enabled": True}, **(section or {})}
    async with boot(
        used or profile(),
        cwd=paths.home,
        environ=scrubbed_environ(paths.home, environ),
        paths=paths,
        serve=serve,
        overrides={"gateway": gateway},
    ) as runtime:
        engine = runtime.capabilities.get(ENGINE_RUNTIME)
        assert isinstance(engine, Runtime)
        yield runtime, engine
