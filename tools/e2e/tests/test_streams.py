"""Any gRPC client can follow runs, be killed in the middle and go on by sequence number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import (  # type: ignore[import-untyped]
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
    reflection_pb2,
    reflection_pb2_grpc,
)

from lemon.execution.v1 import execution_pb2 as epb
from lemon.execution.v1 import execution_pb2_grpc
from lemon.router.v1 import router_pb2 as pb
from lemon.router.v1 import router_pb2_grpc
from tools.e2e.tests.stack import Home, model_server, user

pytestmark = pytest.mark.anyio

WORDS = [f"word{number} " for number in range(12)]
# What a client gets instead of single events when some are gone.
GAPS: tuple[Literal["snapshot", "not_found", "closing"], ...] = ("snapshot", "not_found", "closing")
SESSION = "agent:default:main:sub:streams"


@dataclass(frozen=True, slots=True)
class Stack:
    """A running server with plain gRPC channels to both services."""

    home: Home
    router: grpc.aio.Channel
    gateway: grpc.aio.Channel

    async def submit(self, run_id: str) -> None:
        stub = router_pb2_grpc.RouterServiceStub(self.router)
        answer = await stub.SubmitRun(
            pb.RunRequest(
                run_id=run_id,
                session_key=SESSION,
                prompt="count",
                cwd=str(self.home.work),
                contract_version=1,
            )
        )
        assert answer.status == pb.SUBMIT_STATUS_ACCEPTED


@asynccontextmanager
async def stack() -> AsyncIterator[Stack]:
    async with user() as home:
        script = {"default": {"text": WORDS}}
        async with model_server(script, home.paths.home) as base_url:
            environ = {**home.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": base_url}
            me = Home(home.paths, environ)
            async with (
                me.server(),
                grpc.aio.insecure_channel(f"unix:{home.paths.router_socket}") as router,
                grpc.aio.insecure_channel(f"unix:{home.paths.gateway_socket}") as gateway,
            ):
                yield Stack(me, router, gateway)


class Follower:
    """One connection at a time: reads some events, is cut off, and comes back for the rest."""

    def __init__(self, open_stream: object, run_id: str, epoch: str) -> None:
        self._open = open_stream
        self._run_id = run_id
        self._epoch = epoch
        self.seen: list[epb.RunEvent] = []

    @property
    def last_seq(self) -> int:
        return self.seen[-1].event_seq if self.seen else 0

    @property
    def ended(self) -> bool:
        return bool(self.seen) and self.seen[-1].HasField("run_completed")

    async def read(self, at_least: int) -> None:
        """Subscribe after the last seen event, read and cut the connection."""

        async def controls() -> AsyncIterator[epb.SubscribeControl]:
            yield epb.SubscribeControl(hello=epb.Hello(contract_version=1))
            yield epb.SubscribeControl(
                subscribe=epb.Subscribe(
                    run_id=self._run_id, after_seq=self.last_seq, stream_epoch=self._epoch
                )
            )
            await anyio.sleep_forever()

        call = self._open(controls())  # type: ignore[operator]  # a stub's method
        wanted = len(self.seen) + at_least
        with anyio.fail_after(30):
            async for frame in call:
                assert not any(frame.HasField(name) for name in GAPS), frame
                self.seen.extend(frame.events)
                if len(self.seen) >= wanted or self.ended:
                    break
        call.cancel()


@pytest.mark.parametrize("service", ["WatchRuns", "SubscribeRuns"])
async def test_a_client_that_is_cut_off_loses_and_repeats_nothing(service: str) -> None:
    async with stack() as s:
        run_id = f"run_{uuid4()}"
        await s.submit(run_id)
        stub: router_pb2_grpc.RouterServiceAsyncStub | execution_pb2_grpc.ExecutionServiceAsyncStub
        if service == "WatchRuns":
            stub = router_pb2_grpc.RouterServiceStub(s.router)
        else:
            stub = execution_pb2_grpc.ExecutionServiceStub(s.gateway)
            await _known(s, run_id)
        opened = getattr(stub, service)
        # Numbers count within an epoch: it says whether a server has restarted in between.
        epoch = (await stub.GetHealth(epb.GetHealthRequest())).stream_epoch
        follower = Follower(opened, run_id, epoch)
        while not follower.ended:
            await follower.read(at_least=1)
        numbers = [event.event_seq for event in follower.seen]
        assert numbers == list(range(1, len(numbers) + 1))
        text = "".join(e.delta.text for e in follower.seen if e.HasField("delta"))
        completed = follower.seen[-1].run_completed.completed
        assert text == completed.answer == "".join(WORDS)
        whole = Follower(opened, run_id, epoch)
        await whole.read(at_least=len(numbers))
        assert whole.seen == follower.seen


async def _known(s: Stack, run_id: str) -> None:
    """Return when the gateway has the run: the router submits it a moment after admission."""
    stub = execution_pb2_grpc.ExecutionServiceStub(s.gateway)
    with anyio.fail_after(30):
        while True:
            runs = await stub.ListRuns(epb.ListRunsRequest())
            if run_id in [run.run_id for run in runs.runs]:
                return
            await anyio.lowlevel.checkpoint()


async def test_any_client_finds_its_way() -> None:
    async with stack() as s:
        for channel, service in (
            (s.router, "lemon.router.v1.RouterService"),
            (s.gateway, "lemon.execution.v1.ExecutionService"),
        ):
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", service):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection.ServerReflectionInfo(iter([request]))
            with anyio.fail_after(10):
                listed = await call.read()
            call.cancel()
            assert service in [row.name for row in listed.list_services_response.service]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (epb.ExecutionCommand(run_id="r", session_key=SESSION, contract_version=1), "conversation"),
        (
            epb.ExecutionCommand(
                run_id="r",
                session_key=SESSION,
                contract_version=1,
                conversation_key=epb.ConversationKey(session_key=SESSION),
            ),
            "context",
        ),
        (
            epb.ExecutionCommand(
                run_id="r",
                session_key=SESSION,
                contract_version=1,
                conversation_key=epb.ConversationKey(session_key=SESSION),
                execution_context=epb.ExecutionContext(version=1, wire_json=b"{garbage"),
            ),
            "wire_json",
        ),
    ],
)
async def test_a_malformed_command_is_an_invalid_argument(
    command: epb.ExecutionCommand, words: str
) -> None:
    async with stack() as s:
        stub = execution_pb2_grpc.ExecutionServiceStub(s.gateway)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SubmitExecution(epb.SubmitExecutionRequest(command=command))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in (caught.value.details() or "").lower()
        runs = await stub.ListRuns(epb.ListRunsRequest())
        assert list(runs.runs) == []


@pytest.mark.parametrize("field", ["meta_json", "tool_policy_json"])
async def test_garbage_in_a_json_field_is_named(
    field: Literal["meta_json", "tool_policy_json"],
) -> None:
    async with stack() as s:
        stub = router_pb2_grpc.RouterServiceStub(s.router)
        request = pb.RunRequest(run_id="r", prompt="hi", contract_version=1)
        setattr(request, field, b"\xff{")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SubmitRun(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in (caught.value.details() or "")
        known = await stub.GetAdmission(pb.GetAdmissionRequest(run_id="r"))
        assert not known.HasField("state")
