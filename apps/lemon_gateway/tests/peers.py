"""Plain gRPC clients of ExecutionService, with the tokens that they show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import anyio
import grpc
import grpc.aio
import pytest

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon_core.rpc.auth import TokenRow
from lemon_core.rpc.channel import metadata_for
from lemon_core.rpc.commands import command_to_message
from lemon_core.rpc.serving import Listen, ServingOptions, TcpListen
from lemon_core.rpc.status import reason_of
from lemon_core.runs import ExecutionCommand
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.tests.fakes import Gateway, running_gateway
from lemon_gateway.tests.forms import serving_at

MINE = TokenRow("mine", "secret-1")
OTHER = TokenRow("other", "secret-2", policy=ToolPolicy.of_profile("read_only"))
ADMIN = TokenRow("admin", "secret-3", frozenset({"runs", "admin"}))
NARROW = TokenRow("narrow", "secret-4", origins=frozenset({"webhook"}))
BIG = ("grpc.max_receive_message_length", 16 * 1024 * 1024)
# The transport takes little for a peer that does not read, so that it is found out soon.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
ROWS = (MINE, OTHER, ADMIN, NARROW)


class Caller:
    """A plain gRPC client with a token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = execution_pb2_grpc.ExecutionServiceStub(channel)

    async def submit(
        self,
        wanted: ExecutionCommand | pb.ExecutionCommand,
        row: TokenRow | None = MINE,
        digest: bytes = b"",
    ) -> pb.SubmitReceipt:
        message = command_to_message(wanted) if isinstance(wanted, ExecutionCommand) else wanted
        request = pb.SubmitExecutionRequest(command=message, command_digest=digest)
        return await self._stub.SubmitExecution(request, metadata=_metadata(row))

    async def get(self, run_id: str, row: TokenRow | None = MINE) -> pb.RunSnapshot:
        return await self._stub.GetRun(pb.GetRunRequest(run_id=run_id), metadata=_metadata(row))

    async def cancel(self, run_id: str, row: TokenRow | None = MINE) -> bool:
        request = pb.CancelRunRequest(run_id=run_id)
        return (await self._stub.CancelRun(request, metadata=_metadata(row))).found

    async def steer(self, run_id: str, row: TokenRow | None = MINE) -> pb.SteerOutcome:
        request = pb.SteerRunRequest(
            run_id=run_id, submission_run_id="s", mode=pb.STEER_MODE_STEER, text="x"
        )
        return await self._stub.SteerRun(request, metadata=_metadata(row))

    async def runs(self, row: TokenRow | None = MINE, **query: object) -> list[str]:
        request = pb.ListRunsRequest(**query)  # type: ignore[arg-type]
        answer = await self._stub.ListRuns(request, metadata=_metadata(row))
        return [run.run_id for run in answer.runs]

    async def frames(
        self, run_id: str, row: TokenRow | None = MINE, after_seq: int = 0, epoch: str = ""
    ) -> list[pb.RunEventFrame]:
        controls = [
            pb.SubscribeControl(hello=pb.Hello(contract_version=1)),
            pb.SubscribeControl(
                subscribe=pb.Subscribe(run_id=run_id, after_seq=after_seq, stream_epoch=epoch)
            ),
        ]
        stream = self._stub.SubscribeRuns(iter(controls), metadata=_metadata(row))
        return [frame async for frame in stream]

    async def stream_status(self, row: TokenRow | None) -> grpc.StatusCode:
        """How a stream on which nothing is said ends."""
        return await self._stub.SubscribeRuns(metadata=_metadata(row)).code()

    async def resolve(self, approval_id: str, decision: str, row: TokenRow | None = MINE) -> bool:
        request = pb.ResolveApprovalRequest(approval_id=approval_id, decision=decision)
        return (await self._stub.ResolveApproval(request, metadata=_metadata(row))).resolved

    async def health(self, row: TokenRow | None = MINE) -> pb.HealthReport:
        return await self._stub.GetHealth(pb.GetHealthRequest(), metadata=_metadata(row))


def _metadata(row: TokenRow | None) -> tuple[tuple[str, str], ...]:
    return metadata_for(None if row is None else row.secret)


@asynccontextmanager
async def calling(
    listen: Listen | None = None,
    rows: Sequence[TokenRow] = ROWS,
    options: ServingOptions | None = None,
) -> AsyncIterator[tuple[Caller, Gateway, grpc.aio.Channel]]:
    where = listen or TcpListen("127.0.0.1", 0)
    with anyio.fail_after(5):
        async with (
            running_gateway() as gateway,
            serving_at(gateway, where, rows, options) as address,
            grpc.aio.insecure_channel(address, options=[BIG, *SMALL_WINDOW]) as channel,
        ):
            yield Caller(channel), gateway, channel


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str | None]:
    """The status and the error word of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), reason_of(caught.value)
