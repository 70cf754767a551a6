"""ExecutionService over TLS: what is encrypted, and who a certificate makes its peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import grpc
import grpc.aio
import pytest

from lemon_core.bridges import ExecutionRejected
from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.errors import LemonError
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.channel import open_channel
from lemon_core.rpc.engine_client import GrpcEngineRuntime
from lemon_core.rpc.listen import ListenError
from lemon_core.rpc.serving import TcpListen
from lemon_core.rpc.tls import ClientTls, ServerTls
from lemon_core.testing.certificates import Authority, Pair
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.tests.fakes import (
    Gateway,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
)
from lemon_gateway.tests.forms import events_of, serving_at
from lemon_gateway.tests.peers import MINE, ROWS, Caller, refused

OURS, FOREIGN = Authority("ours"), Authority("foreign")
SERVER = OURS.server()
TLS = ServerTls(SERVER.cert, SERVER.key)
MUTUAL = ServerTls(SERVER.cert, SERVER.key, OURS.cert, names_peers=True)
BUILDER = TokenRow("builder", origins=frozenset({"test"}), policy=ToolPolicy.full_access())
BOSS = TokenRow("boss", scopes=frozenset({"runs", "admin"}))
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
DENIED = (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")


@asynccontextmanager
async def secured(
    tls: ServerTls, rows: Sequence[TokenRow], host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that listens with certificates, and its address for clients."""
    with anyio.fail_after(10):
        async with (
            running_gateway(ScriptedExecutor(answer_hello)) as gateway,
            serving_at(gateway, TcpListen(host, 0), rows, tls=tls) as address,
        ):
            yield gateway, "127.0.0.1:" + address.rpartition(":")[2]


@asynccontextmanager
async def caller(address: str, pair: Pair | None = None) -> AsyncIterator[Caller]:
    """A plain client that trusts our authority and shows `pair`."""
    cert, key = (None, None) if pair is None else (pair.cert, pair.key)
    async with open_channel(address, ClientTls(OURS.cert, cert, key)) as channel:
        yield Caller(channel)


async def test_beyond_loopback_a_token_travels_encrypted_only() -> None:
    """Specification lemon_gateway 5.4: over TCP that is not loopback TLS is required."""
    async with secured(TLS, ROWS, host="0.0.0.0") as (gateway, address):
        client = GrpcEngineRuntime(
            address,
            bus=Bus(),
            clock=SystemClock(),
            token=MINE.secret,
            tls=ClientTls(OURS.cert),
        )
        async with client:
            await client.submit_execution(command("run_1"))
            assert await events_of(client, "run_1") == await gateway.events("run_1")
        async with caller(address) as plain:
            status, _ = await refused(plain.get("run_1", None))
            assert status is grpc.StatusCode.UNAUTHENTICATED
        async with grpc.aio.insecure_channel(address) as channel:
            assert (await refused(Caller(channel).get("run_1")))[0] is UNAVAILABLE


@pytest.mark.behaviour("lemon_gateway.24")
async def test_a_certificate_names_its_peer_with_and_without_a_row() -> None:
    """Specification lemon_gateway 5.4: with a row its scopes, origins and policy, else `runs` and
    `safe_mode`."""
    async with (
        secured(MUTUAL, (BUILDER, BOSS)) as (gateway, address),
        caller(address, OURS.client("builder")) as builder,
        caller(address, OURS.client("stranger")) as stranger,
        caller(address, OURS.client("", alternative="boss")) as boss,
    ):
        await builder.submit(command("run_1", session_key="agent:a:main"), None)
        await stranger.submit(command("run_2", session_key="agent:b:main"), None)
        policies = {}
        for run_id in ("run_1", "run_2"):
            control = await gateway.executor.run(run_id)
            policies[run_id] = control.request.execution_context.capabilities
        assert policies["run_1"].allowed("bash")
        assert not policies["run_2"].allowed("bash")
        assert [gateway.runtime.owner(run_id) for run_id in policies] == ["builder", "stranger"]
        assert await builder.runs(None) == ["run_1"]
        assert await stranger.runs(None) == ["run_2"]
        assert await boss.runs(None) == ["run_1", "run_2"]
        assert await refused(stranger.get("run_1", None)) == DENIED
        # A name that a peer gives itself is no name.
        assert await refused(stranger.get("run_1", TokenRow("boss", "builder"))) == DENIED


@pytest.mark.behaviour("lemon_gateway.24")
async def test_foreign_and_missing_certificates_do_not_get_in() -> None:
    """Specification lemon_gateway 5.4: the handshake ends what our authority did not sign."""
    async with secured(MUTUAL, (BUILDER,)) as (gateway, address):
        for pair in (FOREIGN.client("builder"), None):
            async with caller(address, pair) as outsider:
                for call in (
                    outsider.submit(command("run_1"), None),
                    outsider.health(None),
                    outsider.get("run_1", None),
                ):
                    assert (await refused(call))[0] is UNAVAILABLE
                assert await outsider.stream_status(None) is UNAVAILABLE
        async with caller(address, OURS.client("")) as nameless:
            status, reason = await refused(nameless.submit(command("run_1"), None))
            assert (status, reason) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        assert gateway.runtime.journal.run_ids() == ()


async def test_a_client_does_not_talk_to_a_server_it_does_not_trust() -> None:
    """Specification lemon_gateway 5.4: a foreign server gets neither token nor prompt."""
    impostor = FOREIGN.server()
    async with secured(ServerTls(impostor.cert, impostor.key), ROWS) as (gateway, address):
        client = GrpcEngineRuntime(
            address, bus=Bus(), clock=SystemClock(), token=MINE.secret, tls=ClientTls(OURS.cert)
        )
        async with client:
            assert not await client.available()
            with pytest.raises(ExecutionRejected):
                await client.submit_execution(command("run_1"))
        assert gateway.runtime.journal.run_ids() == ()


async def test_certificates_without_tokens_do_not_name_peers() -> None:
    """Specification lemon_gateway 5.4: the server refuses to start with anything else."""
    async with running_gateway() as gateway:
        with pytest.raises(ListenError, match="configure a token"):
            async with serving_at(gateway, TcpListen("127.0.0.1", 0), (), tls=TLS):
                pass
    with pytest.raises(ListenError, match="in the clear"):
        open_channel("gateway.example:50051")
    assert issubclass(ListenError, LemonError)
