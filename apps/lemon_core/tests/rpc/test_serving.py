"""Servers: where they listen, whom they let in, and how errors travel."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
    reflection_pb2,
    reflection_pb2_grpc,
)

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon_core.bridges import ExecutionRejected, RunIdConflict, RunNotFound
from lemon_core.clock import SystemClock
from lemon_core.errors import LemonError
from lemon_core.execution_context import AuthorityError, ContextRejected
from lemon_core.paths import PathSettings
from lemon_core.rpc.auth import OPERATOR, Peer, TokenAuthenticator, TokenRow
from lemon_core.rpc.fields import InvalidContext, UnsupportedContract
from lemon_core.rpc.listen import Listen, ListenError, TcpListen, UnixListen, parse_listen
from lemon_core.rpc.status import (
    PermissionDenied,
    SlowConsumer,
    TooManyStreams,
    Unauthenticated,
    reason_of,
    refusal,
    status_of,
)
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.runs import MissingContext, MissingConversationKey
from lemon_core.state_lock import SocketInUse, SocketPathTooLong
from lemon_core.testing import socket_dir
from lemon_core.tests.rpc import samples
from lemon_core.tests.rpc.doubles import EXECUTION, GatewayDouble, serving
from lemon_core.tool_policy import InvalidToolPolicy, ToolPolicy

LOOPBACK = TcpListen("127.0.0.1", 0)
TOKENS = (
    TokenRow("reader", "s3cret", frozenset({"runs"}), frozenset({"node"})),
    TokenRow("boss", "0ther", frozenset({"runs", "admin"}), None, ToolPolicy.full_access()),
)


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with socket_dir() as path:
        yield path


# --- addresses ---


def test_listen_is_a_socket_below_the_home_or_an_address(tmp_path: Path) -> None:
    paths = PathSettings(tmp_path)
    assert parse_listen("unix:~/.lemon/run/gateway.sock", paths) == UnixListen(paths.gateway_socket)
    assert parse_listen("unix:/run/x.sock", paths) == UnixListen(Path("/run/x.sock"))
    assert parse_listen("127.0.0.1:4100", paths) == TcpListen("127.0.0.1", 4100)
    assert parse_listen("localhost:0", paths) == TcpListen("127.0.0.1", 0)
    assert parse_listen("[::1]:4100", paths).target == "[::1]:4100"
    for text in ("unix:", "4100", ":4100", "host:", "host:x", "host:70000", ""):
        with pytest.raises(ListenError):
            parse_listen(text, paths)


def test_a_socket_path_is_quoted_for_grpc() -> None:
    assert UnixListen(Path("/a b/#%.sock")).target == "unix:/a%20b/%23%25.sock"


async def start(listen: Listen, tokens: tuple[TokenRow, ...] = ()) -> None:
    async with serving(GatewayDouble(SystemClock()), listen, SystemClock(), tokens=tokens):
        pass


async def test_the_socket_is_private_and_gone_afterwards(folder: Path) -> None:
    """Specification lemon_gateway 5.4."""
    path = folder / "sub dir" / "g#1.sock"
    clock = SystemClock()
    async with serving(GatewayDouble(clock), UnixListen(path), clock) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert server.address == f"unix:{path}"
        async with grpc.aio.insecure_channel(UnixListen(path).target) as channel:
            stub = execution_pb2_grpc.ExecutionServiceStub(channel)
            assert (await stub.GetHealth(pb.GetHealthRequest(), timeout=5)).node_id == "node_1"
    assert not path.exists()


async def test_a_path_that_somebody_listens_on_is_left_alone(folder: Path) -> None:
    path = folder / "g.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(SocketInUse):
            await start(UnixListen(path))
    with pytest.raises(SocketInUse):  # dead now: for the holder of the lock to remove
        await start(UnixListen(path))
    path.unlink()
    path.write_text("a file")
    with pytest.raises(SocketInUse):
        await start(UnixListen(path))
    assert path.read_text() == "a file"


async def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    os.chmod(folder, 0o755)
    with pytest.raises(ListenError, match="chmod 700"):
        await start(UnixListen(folder / "g.sock"))


async def test_a_long_path_is_told_in_one_line(folder: Path) -> None:
    with pytest.raises(SocketPathTooLong) as caught:
        await start(UnixListen(folder / ("x" * 100)))
    assert "\n" not in str(caught.value)
    assert "107" in str(caught.value)


@pytest.mark.parametrize(
    ("listen", "tokens", "reason"),
    [
        (LOOPBACK, (), "Unix socket only"),
        (LOOPBACK, (TokenRow("a", ""),), "secret"),
        (LOOPBACK, (TokenRow("", "s"),), "id"),
        (TcpListen("0.0.0.0", 0), TOKENS, "loopback"),
        (TcpListen("example.org", 0), TOKENS, "loopback"),
    ],
)
async def test_tcp_needs_tokens_and_loopback(
    listen: TcpListen, tokens: tuple[TokenRow, ...], reason: str
) -> None:
    """Specification lemon_gateway 13.24: `auth = "none"` on any TCP address stops the start."""
    with pytest.raises(ListenError, match=reason):
        await start(listen, tokens)


async def test_a_port_is_not_shared(folder: Path) -> None:
    clock = SystemClock()
    async with serving(GatewayDouble(clock), LOOPBACK, clock, tokens=TOKENS) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ListenError, match="taken"):
            await start(TcpListen("127.0.0.1", port), TOKENS)


# --- peers ---


def test_the_operator_has_every_scope_and_no_limits() -> None:
    assert Peer("operator", frozenset({"runs", "admin"}), None, None, local=True) == OPERATOR
    assert OPERATOR.is_admin
    assert OPERATOR.allows_origin("cron")


def test_the_token_says_who_calls() -> None:
    authenticator = TokenAuthenticator(TOKENS)
    reader = authenticator.peer([("x", b"y"), ("authorization", "Bearer s3cret")])
    safe_mode = ToolPolicy.of_profile("safe_mode")
    assert reader == Peer(
        "reader", frozenset({"runs"}), frozenset({"node"}), safe_mode, local=False
    )
    assert not reader.is_admin
    assert reader.allows_origin("node")
    assert not reader.allows_origin("cron")
    boss = authenticator.peer([("authorization", "bearer  0ther ")])
    assert (boss.id, boss.policy) == ("boss", ToolPolicy.full_access())
    for value in ("Bearer wrong", "s3cret", "Basic s3cret", "Bearer ", "Bearer s3cret0ther", ""):
        with pytest.raises(Unauthenticated):
            authenticator.peer([("authorization", value)])
    with pytest.raises(Unauthenticated):
        authenticator.peer(())
    assert "s3cret" not in repr(TOKENS)


async def test_every_tcp_call_is_authenticated_health_and_reflection_too(folder: Path) -> None:
    """Specification lemon_gateway 5.4."""
    clock = SystemClock()
    async with (
        serving(GatewayDouble(clock), LOOPBACK, clock, tokens=TOKENS) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await ask_everything(channel, (("authorization", "Bearer s3cret"),))
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            for call in (ask_health, ask_reflection, ask_service, open_stream):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(channel, metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert reason_of(caught.value) == "unauthenticated"


async def test_standard_health_and_reflection_answer_on_the_socket(folder: Path) -> None:
    """Specification lemon_gateway 5.2."""
    clock = SystemClock()
    listen = UnixListen(folder / "g.sock")
    async with (
        serving(GatewayDouble(clock), listen, clock),
        grpc.aio.insecure_channel(listen.target) as channel,
    ):
        await ask_everything(channel, ())


Metadata = tuple[tuple[str, str], ...]


async def ask_everything(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    await ask_health(channel, metadata)
    await ask_reflection(channel, metadata)
    await ask_service(channel, metadata)
    await ask_stream(channel, metadata)


async def ask_health(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", EXECUTION):
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await stub.Check(request, metadata=metadata, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def ask_reflection(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(metadata=metadata, timeout=5)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {EXECUTION, "grpc.health.v1.Health"}
    call.cancel()


async def ask_service(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    stub = execution_pb2_grpc.ExecutionServiceStub(channel)
    await stub.GetHealth(pb.GetHealthRequest(), metadata=metadata, timeout=5)


async def ask_stream(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    call = execution_pb2_grpc.ExecutionServiceStub(channel).SubscribeRuns(
        metadata=metadata, timeout=5
    )
    await call.write(pb.SubscribeControl(hello=pb.Hello(contract_version=1)))
    await call.write(pb.SubscribeControl(subscribe=pb.Subscribe(run_id="unknown")))
    frame = await call.read()
    assert frame == pb.RunEventFrame(not_found=pb.RunNotFound(run_id="unknown"))
    call.cancel()


async def open_stream(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    # Without a word: one that meets the refusal on its way would hide its status.
    stub = execution_pb2_grpc.ExecutionServiceStub(channel)
    await stub.SubscribeRuns(metadata=metadata, timeout=5).read()


# --- errors ---


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidMessage("meta_json", "not JSON"), grpc.StatusCode.INVALID_ARGUMENT),
        (MissingContext("r"), grpc.StatusCode.INVALID_ARGUMENT),
        (MissingConversationKey("r"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            InvalidContext(ContextRejected("digest_mismatch", "altered")),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (ContextRejected("expired", "over"), grpc.StatusCode.INVALID_ARGUMENT),
        (AuthorityError("workspace_escape", "out"), grpc.StatusCode.INVALID_ARGUMENT),
        (InvalidToolPolicy("allow", "wrong_type", "x"), grpc.StatusCode.INVALID_ARGUMENT),
        (UnsupportedContract(2), grpc.StatusCode.FAILED_PRECONDITION),
        (RunIdConflict("r"), grpc.StatusCode.ALREADY_EXISTS),
        (RunNotFound("r"), grpc.StatusCode.NOT_FOUND),
        (ExecutionRejected("full"), grpc.StatusCode.UNAVAILABLE),
        (Unauthenticated("who"), grpc.StatusCode.UNAUTHENTICATED),
        (PermissionDenied("no"), grpc.StatusCode.PERMISSION_DENIED),
        (TooManyStreams("256"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (SlowConsumer(), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (LemonError("other"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors_travel_with_status_and_word(
    folder: Path, error: LemonError, status: grpc.StatusCode
) -> None:
    """Specification lemon_gateway 5.3, the status mapping."""
    assert status_of(error) is status
    clock, listen = SystemClock(), UnixListen(folder / "g.sock")
    double = GatewayDouble(clock)
    double.failures = [error]
    async with (
        serving(double, listen, clock),
        grpc.aio.insecure_channel(listen.target) as channel,
    ):
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetHealth(pb.GetHealthRequest(), timeout=5)
    assert caught.value.code() is status
    assert caught.value.details() == str(error)
    assert reason_of(caught.value) == error.code


def test_the_details_are_a_google_rpc_status() -> None:
    """The bytes are those of google.rpc.Status with one google.rpc.ErrorInfo."""
    _, _, ((key, details),) = refusal(RunIdConflict("r"))
    assert key == "grpc-status-details-bin"
    text = b"run id r belongs to a different command"
    info = b"\x0a\x0frun_id_conflict\x12\x05lemon"
    url = b"type.googleapis.com/google.rpc.ErrorInfo"
    detail = b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(info)]) + info
    assert details == (
        b"\x08\x06\x12" + bytes([len(text)]) + text + b"\x1a" + bytes([len(detail)]) + detail
    )


def test_details_of_other_servers_are_no_error() -> None:
    for details in (b"", b"\xff", b"\x1a\x05ab", b"\x1a\x02\x08\x01"):
        error = grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(("grpc-status-details-bin", details)),
        )
        assert reason_of(error) is None


async def test_a_server_that_ends_lets_streams_send_what_is_ready(folder: Path) -> None:
    """Specification lemon_gateway 13.41: subscribers see how their runs ended."""
    clock, listen = SystemClock(), UnixListen(folder / "g.sock")
    double = GatewayDouble(clock)
    frames: list[pb.RunEventFrame] = []
    with anyio.fail_after(5):
        async with grpc.aio.insecure_channel(listen.target) as channel:
            async with serving(double, listen, clock):
                double.journal.open("run_1", samples.SESSION)
                double.journal.open("run_2", samples.SESSION)
                call = execution_pb2_grpc.ExecutionServiceStub(channel).SubscribeRuns()
                await call.write(pb.SubscribeControl(hello=pb.Hello(contract_version=1)))
                for run_id in ("run_1", "run_2"):
                    subscribe = pb.Subscribe(run_id=run_id)
                    await call.write(pb.SubscribeControl(subscribe=subscribe))
                double.journal.append("run_1", samples.started("run_1"))
                frames.append(await call.read())  # type: ignore[arg-type]  # not the end yet
                double.journal.append(
                    "run_1", samples.completed("run_1", "gateway_shutdown", ok=False)
                )
            while (frame := await call.read()) is not grpc.aio.EOF:
                frames.append(frame)  # type: ignore[arg-type]  # not the end, see above
            assert await call.code() is grpc.StatusCode.OK
    kinds = [frame.WhichOneof("note") or frame.events[0].WhichOneof("payload") for frame in frames]
    assert kinds == ["run_started", "run_completed", "closing"]
    assert frames[-1].closing.reason == "shutdown"
