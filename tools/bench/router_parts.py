"""A server of router and gateway with an executor that answers at once, on a store of choice.

    python -m tools.bench.router_parts <home> <sqlite|postgres>

The URL of PostgreSQL comes in `LEMON_STORE_URL`, as for every server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, Literal

import anyio

from lemon_core.boot import boot
from lemon_core.configured_store import URL_VARIABLE
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_gateway.executor import RunHandle, RunOptions, Sink
from lemon_gateway.requests import EngineStarted, ExecutionRequest
from tools.bench.gateway_parts import GATEWAY, READY, InstantExecutor

StoreName = Literal["sqlite", "postgres"]

HOLD: Final = "hold"
"""The prompt of a run that goes on until it is cancelled: what comes after it has to wait."""
PROFILE: Final = Profile(
    "bench",
    components=("lemon_gateway.app:component", "lemon_router.app:component"),
    executor="tools.bench.router_parts:HoldingExecutor",
)
ROUTER: Final[dict[str, object]] = {
    "engine_runtime": "grpc",
    "health_enabled": False,
    "rpc": {"enabled": True, "journal_retention_ms": 1_000},
}


class HoldingExecutor(InstantExecutor):
    """Answers everything at once but `HOLD`."""

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """See `lemon_gateway.executor.Executor`."""
        if request.prompt != HOLD:
            return await super().start_run(request, opts, sink)
        await sink.send(EngineStarted(request.run_id))
        return RunHandle(request.run_id, None)


async def serve(home: Path, store: str) -> None:
    """The measured process."""
    environ = {"HOME": str(home), URL_VARIABLE: os.environ.get(URL_VARIABLE, "")}
    async with boot(
        PROFILE,
        cwd=home,
        environ=environ,
        paths=PathSettings(home),
        serve=True,
        overrides={
            "gateway": GATEWAY,
            "router": ROUTER,
            "store": {"backend": store},
            "logging": {"level": "error"},
        },
    ):
        print(READY, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), sys.argv[2])
