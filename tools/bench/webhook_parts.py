"""A server with a webhook whose router takes everything at once and does nothing with it.

python -m tools.bench.webhook_parts <home>
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from lemon_core.boot import boot
from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runs import RunRequest
from lemon_core.runtime import Runtime

READY: Final = "webhook at "
TOKEN: Final = "the token of the benchmark"
PROFILE: Final = Profile(
    "bench",
    components=("tools.bench.webhook_parts:component", "lemon_gateway.app:component"),
    executor="tools.bench.gateway_parts:InstantExecutor",
)
GATEWAY: Final[dict[str, object]] = {
    "gateway_ingress_enabled": True,
    "enable_webhook": True,
    "health_enabled": False,
    "webhook": {"port": 0, "integrations": {"bench": {"token": TOKEN}}},
}


class TakingRouter:
    """Takes everything."""

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        """See `lemon_core.bridges.RouterPort`."""
        return SubmitResult("accepted", request.run_id)


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    """The router of this server."""
    runtime.capabilities.register(ROUTER, TakingRouter())
    yield


async def serve(home: Path) -> None:
    """The measured process."""
    async with boot(
        PROFILE,
        cwd=home,
        environ={"HOME": str(home)},
        paths=PathSettings(home),
        serve=True,
        overrides={"gateway": GATEWAY, "logging": {"level": "error"}},
    ) as runtime:
        print(f"{READY}{runtime.listening['webhook']}", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]))
