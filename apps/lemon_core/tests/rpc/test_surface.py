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
from lemon_core.rpc.surface import SecretMissing, claim_surface, engine_access
from lemon_core.rpc.tls import ClientTls
from lemon_core.runtime import Runtime
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_core.testing.certificates import Authority

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


async def test_certificates_take_the_place_of_secrets() -> None:
    """Specification lemon_gateway 5.4: with `mtls` a row needs no secret."""
    authority = Authority()
    with anyio.fail_after(5):
        async with running("") as runtime:
            home = runtime.paths.home
            (home / "ca.pem").write_bytes(authority.cert)
            cert, key = authority.server().write(home, "server")
            files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": "~/ca.pem"}
            fields = {"listen": "0.0.0.0:0", "tokens": [{"id": "desk"}], **files}
            section = GatewayRpc.model_validate({**fields, "auth": "mtls"})
            assert section.problems() == []
            surface = await claim_surface(runtime, section, "gateway.rpc")
            assert surface.tls is not None
            assert (surface.tls.names_peers, surface.tls.client_ca) == (True, authority.cert)
            assert [(row.id, row.secret) for row in surface.tokens] == [("desk", "")]
            by_token = GatewayRpc.model_validate(fields)
            assert [key for key, _ in by_token.problems()] == ["tokens"]


async def test_how_the_router_reaches_its_gateways() -> None:
    """Specification lemon_router 11: `engine_token_secret` and the TLS keys."""
    with anyio.fail_after(5):
        async with running("s3cret") as runtime:
            assert await engine_access(runtime) == (None, None)
            authority = Authority()
            (runtime.paths.home / "ca.pem").write_bytes(authority.cert)
            named = {"engine_token_secret": "ROUTER_ONE", "engine_tls_ca": "~/ca.pem"}
            router = runtime.config.router.model_copy(update=named)
            runtime.config = runtime.config.model_copy(update={"router": router})
            assert await engine_access(runtime) == ("s3cret", ClientTls(authority.cert))
