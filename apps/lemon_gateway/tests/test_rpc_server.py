"""ExecutionService on the wire: status of each refusal, peers, health and reflection."""

from __future__ import annotations

import stat

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import pytest

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon_core.execution_context import Workspace
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.commands import command_to_message
from lemon_core.rpc.serving import (
    ListenError,
    ServingOptions,
    TcpListen,
    UnixListen,
)
from lemon_core.testing import socket_dir
from lemon_gateway.rpc_server import SERVICE
from lemon_gateway.tests.fakes import ScriptedExecutor, command, running_gateway
from lemon_gateway.tests.forms import serving_at
from lemon_gateway.tests.peers import (
    ADMIN,
    MINE,
    NARROW,
    OTHER,
    ROWS,
    Caller,
    calling,
    refused,
)


@pytest.mark.behaviour("lemon_gateway.24", "lemon_gateway.41")
async def test_every_refusal_has_its_status() -> None:
    """Specification lemon_gateway 5.3, status mapping."""
    whole = command_to_message(command("run_1"))

    def changed(**fields: object) -> pb.ExecutionCommand:
        message = pb.ExecutionCommand()
        message.CopyFrom(whole)
        for name, value in fields.items():
            if value is None:
                message.ClearField(name)
            else:
                setattr(message, name, value)
        return message

    invalid = grpc.StatusCode.INVALID_ARGUMENT
    tampered = changed()
    tampered.execution_context.wire_json = tampered.execution_context.wire_json.replace(
        b"/tmp", b"/etc"
    )
    async with calling() as (caller, gateway, _):
        assert await refused(caller.submit(changed(conversation_key=None))) == (
            invalid,
            "missing_conversation_key",
        )
        assert await refused(caller.submit(changed(execution_context=None))) == (
            invalid,
            "missing_context",
        )
        assert (await refused(caller.submit(changed(meta_json=b"{not json"))))[0] is invalid
        assert (await refused(caller.submit(changed(run_id=""))))[0] is invalid
        assert (await refused(caller.submit(changed(run_id="run_2"))))[0] is invalid
        assert (await refused(caller.submit(tampered)))[0] is invalid
        assert (await refused(caller.submit(changed(contract_version=9))))[0] is (
            grpc.StatusCode.FAILED_PRECONDITION
        )
        assert await refused(caller.submit(whole, digest=b"other")) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "run_id_conflict",
        )
        assert gateway.runtime.journal.run_ids() == ()
        await caller.submit(whole, digest=command("run_1").digest())
        assert await refused(caller.submit(command("run_1", "other"))) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "run_id_conflict",
        )
        assert await refused(caller.get("run_x")) == (grpc.StatusCode.NOT_FOUND, "not_found")
        assert not await caller.cancel("run_x")
        await gateway.runtime.refuse()
        assert await refused(caller.submit(command("run_2"))) == (
            grpc.StatusCode.UNAVAILABLE,
            "execution_rejected",
        )


@pytest.mark.behaviour("lemon_gateway.24")
async def test_a_message_over_the_limit_is_refused() -> None:
    """Specification lemon_gateway 12: max_message_bytes."""
    async with calling(options=ServingOptions(max_message_bytes=20_000)) as (caller, _, __):
        await caller.submit(command("run_1"))
        status, _ = await refused(caller.submit(command("run_2", "x" * 30_000)))
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.behaviour("lemon_gateway.24")
async def test_without_a_valid_token_nothing_answers_on_tcp() -> None:
    """Specification lemon_gateway 5.4: on TCP every call is authenticated."""
    wrong = TokenRow("mine", "guessed")
    async with calling() as (caller, _, __):
        for row in (None, wrong):
            for call in (
                caller.submit(command("run_1"), row),
                caller.get("run_1", row),
                caller.cancel("run_1", row),
                caller.health(row),
            ):
                assert (await refused(call))[0] is grpc.StatusCode.UNAUTHENTICATED
            assert await caller.stream_status(row) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.behaviour("lemon_gateway.24")
async def test_a_peer_sees_and_steers_only_its_own_runs() -> None:
    """Specification lemon_gateway 5.4: unless it has the admin scope."""
    denied = (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
    async with calling() as (caller, gateway, _):
        await caller.submit(command("run_1"), MINE)
        for call in (
            caller.get("run_1", OTHER),
            caller.cancel("run_1", OTHER),
            caller.steer("run_1", OTHER),
            caller.submit(command("run_1"), OTHER),
            caller.frames("run_1", OTHER),
        ):
            assert await refused(call) == denied
        assert await caller.runs(OTHER) == []
        assert await caller.runs(MINE) == await caller.runs(ADMIN) == ["run_1"]
        assert await caller.runs(ADMIN, states=[pb.RUN_STATE_TERMINAL]) == []
        assert await caller.runs(ADMIN, session_key="agent:x:main") == []
        assert (await caller.get("run_1", ADMIN)).run_id == "run_1"
        # A run of the router in this process belongs to no peer.
        await gateway.runtime.submit_execution(command("run_local"))
        assert await refused(caller.get("run_local", MINE)) == denied
        assert await caller.cancel("run_1", ADMIN)
        frames = await caller.frames("run_1", MINE)
        assert frames[-1].events[-1].run_completed.completed.error_json == b'"user_requested"'


@pytest.mark.behaviour("lemon_gateway.24")
async def test_runs_over_tcp_have_the_peer_s_policy_and_origin() -> None:
    """Specification lemon_gateway 5.4: ctx.narrowed(policy of the peer), safe_mode by default."""
    async with calling() as (caller, gateway, _):
        assert await refused(caller.submit(command("run_0"), NARROW)) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "permission_denied",
        )
        await caller.submit(command("run_1", session_key="agent:a:main"), MINE)
        await caller.submit(command("run_2", session_key="agent:b:main"), OTHER)
        policies = {}
        for run_id in ("run_1", "run_2"):
            control = await gateway.executor.run(run_id)
            policies[run_id] = control.request.execution_context.capabilities
        assert not policies["run_1"].allowed("bash")
        assert policies["run_1"].allowed("task")
        assert not policies["run_2"].allowed("task")
        assert policies["run_2"].allowed("read")


async def test_a_run_over_tcp_works_only_where_this_node_lets_it() -> None:
    """Specification lemon_gateway 5.4: a workspace outside the node's own roots is refused."""
    outside = command("run_1", workspace=Workspace.at("/usr"))
    async with calling() as (caller, gateway, _):
        assert await refused(caller.submit(outside)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "context_invalid",
        )
        assert gateway.runtime.list_runs([], None) == []
    with socket_dir() as folder:
        async with calling(UnixListen(folder / "gateway.sock")) as (caller, gateway, _):
            await caller.submit(outside, None)
            await gateway.executor.run("run_1")


async def test_the_unix_socket_is_private_and_its_peer_may_do_everything() -> None:
    """Specification lemon_gateway 5.4: mode 0600, parent 0700, the peer is operator."""
    with socket_dir() as folder:
        path = folder / "run" / "gateway.sock"
        async with calling(UnixListen(path)) as (caller, gateway, _):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            await caller.submit(command("run_1"), None)
            await gateway.runtime.submit_execution(command("run_local"))
            assert await caller.runs(None) == ["run_1", "run_local"]
            control = await gateway.executor.run("run_1")
            assert control.request.execution_context.capabilities.allowed("bash")
        assert not path.exists()


@pytest.mark.behaviour("lemon_gateway.24")
async def test_tcp_without_tokens_stops_the_start() -> None:
    """Specification lemon_gateway 5.4: auth = "none" on TCP, loopback too, is refused."""
    async with running_gateway() as gateway:
        with pytest.raises(ListenError, match="configure a token"):
            async with serving_at(gateway, TcpListen("127.0.0.1", 0), ()):
                pass
        with pytest.raises(ListenError, match="set tls_cert and tls_key"):
            async with serving_at(gateway, TcpListen("0.0.0.0", 0), ROWS):
                pass


async def test_health_reflection_and_the_standard_health_service() -> None:
    """Specification lemon_gateway 5.2."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
    from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
        reflection_pb2,
        reflection_pb2_grpc,
    )

    with socket_dir() as folder:
        async with calling(UnixListen(folder / "gateway.sock")) as (caller, gateway, channel):
            report = await caller.health(None)
            assert (report.ok, report.app) == (True, "lemon_gateway")
            assert report.bus_id == gateway.bus.id
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", SERVICE):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            async for listed in reflection.ServerReflectionInfo(iter([asked])):
                names = [service.name for service in listed.list_services_response.service]
                assert SERVICE in names


async def test_a_whole_run_for_a_plain_client() -> None:
    """Specification lemon_gateway 5.2: any gRPC client works."""

    async def script(control: object) -> None:
        await control.say("a", "b")  # type: ignore[attr-defined]
        await control.complete()  # type: ignore[attr-defined]

    with anyio.fail_after(5), socket_dir() as folder:
        async with (
            running_gateway(ScriptedExecutor(script)) as gateway,
            serving_at(gateway, UnixListen(folder / "g.sock")) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            caller = Caller(channel)
            await caller.submit(command("run_1"), None)
            frames = await caller.frames("run_1", None)
            events = [event for frame in frames for event in frame.events]
            assert [event.WhichOneof("payload") for event in events] == [
                "run_started",
                "delta",
                "delta",
                "engine_completed",
                "run_completed",
            ]
            assert [event.event_seq for event in events] == [1, 2, 3, 4, 5]
            snapshot = await caller.get("run_1", None)
            assert snapshot.state == pb.RUN_STATE_TERMINAL
            assert snapshot.terminal.completed.answer == "ab"


@pytest.mark.behaviour("lemon_gateway.25")
async def test_a_stalled_subscriber_is_closed_as_slow_and_goes_on() -> None:
    """Specification lemon_gateway 5.3: past 2,000 unsent the stream is closed and resumes."""
    with socket_dir() as folder:
        async with calling(UnixListen(folder / "g.sock")) as (caller, gateway, channel):
            await caller.submit(command("run_1"), None)
            control = await gateway.executor.run("run_1")
            controls = [
                pb.SubscribeControl(hello=pb.Hello(contract_version=1)),
                pb.SubscribeControl(subscribe=pb.Subscribe(run_id="run_1")),
            ]
            stream = execution_pb2_grpc.ExecutionServiceStub(channel).SubscribeRuns(iter(controls))
            frames = aiter(stream)
            first = await anext(frames)
            # Nobody reads while far more arrives than the transport takes.
            for _ in range(6_000):
                await control.say("x" * 1_000)
            while gateway.runtime.journal.last_seq("run_1") < 6_001:
                await anyio.lowlevel.checkpoint()
            seen = [event.event_seq for event in first.events]
            closing = ""
            async for frame in frames:
                seen += [event.event_seq for event in frame.events]
                closing = closing or frame.closing.reason
            assert closing == "slow_consumer"
            assert seen == list(range(1, len(seen) + 1))
            assert gateway.runtime.journal.total_bytes < 17 * 1024 * 1024
            await control.complete()
            rest = await caller.frames("run_1", None, after_seq=len(seen))
            text = "".join(f.snapshot.accumulated_text for f in rest)
            text += "".join(e.delta.text for f in rest for e in f.events)
            assert rest[-1].events[-1].WhichOneof("payload") == "run_completed"
            assert len(text) >= 1_000 * (6_001 - len(seen))
