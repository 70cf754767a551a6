"""A gateway that takes calls while it executes runs, and whoever keeps such runs going.

python -m tools.bench.voice_parts serve <home> <address of the services>
python -m tools.bench.voice_parts load <home> <paced|busy>
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import anyio

from lemon_core.boot import boot
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.resume import ResumeToken
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.listen import UnixListen
from lemon_core.runtime import Runtime
from lemon_gateway.executor import RunHandle, RunOptions, Sink
from lemon_gateway.ingress import SurfaceTransport
from lemon_gateway.requests import EngineCompleted, EngineDelta, EngineStarted, ExecutionRequest
from lemon_gateway.voice.providers import Endpoints
from lemon_gateway.voice.surface import surface
from tools.bench.gateway_parts import GATEWAY, READY, Commands, InstantExecutor, one_run

Pace = Literal["paced", "busy"]

RUNS: Final = 8
TOKENS: Final = 200
# A model that writes fast.
TOKEN_MS: Final = 10
SERVICES: Final = "BENCH_SERVICES"
AUTH_TOKEN: Final = "bench"
PROFILE: Final = Profile(
    "bench",
    components=("lemon_gateway.app:component", "tools.bench.voice_parts:component"),
    executor="tools.bench.voice_parts:StreamingExecutor",
)
VOICE: Final[dict[str, object]] = {
    "websocket_port": 0,
    "twilio_account_sid": "ACbench",
    "twilio_auth_token": AUTH_TOKEN,
    "deepgram_api_key": "none",
    "elevenlabs_api_key": "none",
    # The benchmark says when a call is over.
    "silence_timeout_ms": 3_600_000,
    "max_call_duration_seconds": 3_600,
}


class StreamingExecutor(InstantExecutor):
    """Streams as a model does, or says everything at once when the prompt is `busy`."""

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """See `lemon_gateway.executor.Executor`."""
        if request.prompt == "busy":
            return await super().start_run(request, opts, sink)
        ref = request.run_id
        return RunHandle(ref, None, done=self._stream(ref, sink))

    async def _stream(self, ref: str, sink: Sink) -> None:
        token = ResumeToken(engine="lemon", value=ref)
        await sink.send(EngineStarted(ref, token))
        for number in range(TOKENS):
            await anyio.sleep(TOKEN_MS / 1000)
            await sink.send(EngineDelta(ref, f"token {number} "))
        await sink.send(EngineCompleted(ref, True, resume=token))


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """Phone calls on a free port, with the services where the environment says."""
    base = runtime.environ[SERVICES]
    services = Endpoints(
        deepgram=base.replace("http", "ws", 1),
        elevenlabs=base,
        twilio=base,
        openai=base,
        anthropic=base,
    )
    way_in = SurfaceTransport(await surface(runtime, services))
    way_in.listen()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(way_in.serve)
        runtime.listening["voice"] = way_in.address
        yield
        tasks.cancel_scope.cancel()


async def serve(home: Path, services: str) -> None:
    """The measured process."""
    async with boot(
        PROFILE,
        cwd=home,
        environ={"HOME": str(home), SERVICES: services},
        paths=PathSettings(home),
        serve=True,
        overrides={"gateway": {**GATEWAY, "voice": VOICE}, "logging": {"level": "error"}},
    ) as runtime:
        print(READY, runtime.listening["voice"], flush=True)
        await anyio.sleep_forever()


async def load(home: Path, pace: str) -> None:
    """Eight runs at any time, over the gateway's socket: whoever is done begins the next."""
    socket = UnixListen(home / ".lemon" / "run" / "gateway.sock")
    commands = Commands(home, pace)
    gateway = GrpcEngineRuntime(socket, bus=Bus(), clock=SystemClock())

    async def keep_going(delay_s: float) -> None:
        await anyio.sleep(delay_s)
        while True:
            await one_run(gateway, commands)

    async with gateway, anyio.create_task_group() as tasks:
        # Runs that begin together would stay together.
        for number in range(RUNS):
            tasks.start_soon(keep_going, number * TOKEN_MS / 1000 / RUNS)
        print(READY, flush=True)


def main() -> None:
    """One of the two processes."""
    home = Path(sys.argv[2])
    if sys.argv[1] == "serve":
        anyio.run(serve, home, sys.argv[3])
    else:
        anyio.run(load, home, sys.argv[3])


if __name__ == "__main__":
    main()
