"""Where a server's tokens come from (specification lemon_gateway 5.4; lemon_core 11)."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.config.rpc import GatewayRpc
from lemon_core.profiles import Profile
from lemon_core.rpc.surface import SecretMissing, claim_surface
from lemon_core.runtime import Runtime
from lemon_core.testing import scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio

SECTION = GatewayRpc.model_validate(
    {"listen": "127.0.0.1:0", "tokens": [{"id": "router-1", "secret": "ROUTER_ONE"}]}
)


@pytest.fixture(autouse=True)
def restored_tree() -> Iterator[None]:
    """Boot configures the process's logger tree; other tests want it as it was."""
    root = logging.getLogger("lemon")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@asynccontextmanager
async def running(variable: str) -> AsyncIterator[Runtime]:
    """A runtime with a master key and with the variable ROUTER_ONE."""
    key = b64encode(b"k" * 32).decode()
    extra = {"LEMON_SECRETS_MASTER_KEY": key, "ROUTER_ONE": variable}
    with temp_home() as paths:
        environ = scrubbed_environ(paths.home, extra)
        async with boot(
            Profile("test"), cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            yield runtime


async def token(runtime: Runtime) -> str:
    """The secret of the one token."""
    surface = await claim_surface(runtime, SECTION, "gateway.rpc")
    return surface.tokens[0].secret


async def test_the_stored_secret_comes_before_the_variable() -> None:
    with anyio.fail_after(5):
        async with running("from env") as runtime:
            assert await token(runtime) == "from env"
            await runtime.secrets.set("ROUTER_ONE", " stored\n")
            assert await token(runtime) == "stored"


async def test_without_either_the_start_is_refused() -> None:
    with anyio.fail_after(5):
        async with running(" ") as runtime:
            with pytest.raises(SecretMissing, match="'ROUTER_ONE', which is not set: put ROUTER"):
                await token(runtime)
            ended = runtime.clock.now_ms() - 1
            await runtime.secrets.set("ROUTER_ONE", "stored", expires_at=ended)
            with pytest.raises(SecretMissing, match=r"of no use .*has expired"):
                await token(runtime)
