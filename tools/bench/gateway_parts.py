"""A gateway with an executor that answers at once, and the commands that are given to it."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import anyio

from lemon_core.boot import boot
from lemon_core.bridges import ENGINE_RUNTIME, EngineRuntime
from lemon_core.events import Event
from lemon_core.execution_context import ExecutionContext, Principal, Provenance, Workspace
from lemon_core.ids import now_ms, run_id
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.resume import ResumeToken, session_conversation
from lemon_core.runs import ExecutionCommand
from lemon_core.runtime import Runtime
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.executor import RunHandle, RunOptions, Sink
from lemon_gateway.requests import EngineCompleted, EngineDelta, EngineStarted, ExecutionRequest
from tools.bench.stats import Timing

TOKENS: Final = 20
READY: Final = "ready"
# More than any load here keeps going, so that none waits for a slot.
MAX_CONCURRENT_RUNS: Final = 64
GATEWAY: Final[dict[str, object]] = {
    "max_concurrent_runs": MAX_CONCURRENT_RUNS,
    "health_enabled": False,
    # What is kept for latecomers is no leak: let it go while the benchmark still looks.
    "rpc": {"enabled": True, "journal_retention_ms": 1_000},
}
PROFILE: Final = Profile(
    "bench",
    components=("lemon_gateway.app:component",),
    executor="tools.bench.gateway_parts:InstantExecutor",
)


class InstantExecutor:
    """Says everything before it returns: what is measured is the gateway alone."""

    def __init__(self, _: Runtime) -> None:
        self._texts = [f"token {number} " for number in range(TOKENS)]

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """See `lemon_gateway.executor.Executor`, as for all calls."""
        ref = request.run_id
        token = ResumeToken(engine="lemon", value=ref)
        await sink.send(EngineStarted(ref, token))
        for text in self._texts:
            await sink.send(EngineDelta(ref, text))
        await sink.send(EngineCompleted(ref, True, resume=token))
        return RunHandle(ref, None)

    async def cancel(self, control: object) -> None:
        """Nothing is left to be stopped."""

    async def steer(self, control: object, text: str) -> str:
        """Too late."""
        return "unsupported"

    async def redirect(self, control: object, text: str) -> str:
        """Too late."""
        return "unsupported"


class Commands:
    """Commands of new conversations in one directory."""

    def __init__(self, cwd: Path, prompt: str = "Say hello.") -> None:
        self._workspace, self._prompt = Workspace.at(str(cwd)), prompt
        self._numbers = count()

    def next(self) -> ExecutionCommand:
        """One that no run has had."""
        name, session = run_id(), f"agent:default:main:sub:{next(self._numbers)}"
        context = ExecutionContext.root(
            run_id=name,
            session_key=session,
            agent_id="default",
            principal=Principal(kind="operator", id="bench"),
            provenance=Provenance(origin="bench"),
            workspace=self._workspace,
            capabilities=ToolPolicy.full_access(),
            now_ms=now_ms(),
        )
        return ExecutionCommand(
            run_id=name,
            session_key=session,
            prompt=self._prompt,
            conversation_key=session_conversation(session),
            execution_context=context,
        )


async def one_run(port: EngineRuntime, commands: Commands) -> tuple[Timing, list[Event]]:
    """Submit a command and read its events to the end."""
    command, first, events = commands.next(), 0.0, []
    began = time.perf_counter()
    await port.submit_execution(command)
    async with aclosing(port.subscribe(command.run_id)) as items:
        async for item in items:
            if isinstance(item, Event):
                events.append(item)
                if not first and item.type == "delta":
                    first = time.perf_counter() - began
    return Timing(first, time.perf_counter() - began), events


@asynccontextmanager
async def booted(home: Path, *, serve: bool) -> AsyncIterator[EngineRuntime]:
    """The gateway over SQLite in `home`, with its socket when it is to `serve`."""
    async with boot(
        PROFILE,
        cwd=home,
        environ={"HOME": str(home)},
        paths=PathSettings(home),
        serve=serve,
        overrides={"gateway": GATEWAY, "logging": {"level": "error"}},
    ) as runtime:
        engine = runtime.capabilities.get(ENGINE_RUNTIME)
        assert engine is not None
        yield engine  # type: ignore[misc]  # the registry is untyped


async def serve(home: Path) -> None:
    """The measured process."""
    async with booted(home, serve=True):
        print(READY, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]))
