# ruff: noqa: N802 - the names of the calls are the contract's
"""A scripted gateway and router behind real gRPC servers, and a proxy that cuts connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio
import grpc

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon.router.v1 import router_pb2 as router_pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core.bridges import (
    HealthCheck,
    HealthReport,
    RunNotFound,
    StreamItem,
    SubmitReceipt,
    SubmitResult,
)
from lemon_core.clock import Clock, SystemClock
from lemon_core.events import PendingApproval
from lemon_core.journal import Journal
from lemon_core.messages import InboundMessage
from lemon_core.router_views import RunInfo, SessionNotFound, SessionView
from lemon_core.rpc.auth import Peer, TokenRow
from lemon_core.rpc.commands import (
    command_from_message,
    receipt_to_message,
    run_request_from_message,
    submit_result_to_message,
)
from lemon_core.rpc.inbound import inbound_from_message
from lemon_core.rpc.listen import Listen, UnixListen
from lemon_core.rpc.router_messages import (
    approvals_to_message,
    patch_from_message,
    run_info_to_message,
    session_info_to_message,
    session_to_message,
    settings_to_message,
)
from lemon_core.rpc.serving import (
    Boundary,
    CallContext,
    RunningServer,
    ServingOptions,
    running_server,
)
from lemon_core.rpc.snapshots import health_to_message, snapshot_to_message
from lemon_core.runs import ExecutionCommand, RunRequest
from lemon_core.store.wrappers import SessionSettings, Unset
from lemon_core.tests.rpc.samples import NOW_MS

EXECUTION = "lemon.execution.v1.ExecutionService"
ROUTER = "lemon.router.v1.RouterService"


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class QuickClock(SystemClock):
    """Real time, except that nobody waits longer than a moment: reconnects need not be slow."""

    async def sleep(self, ms: float) -> None:
        await super().sleep(ms if ms > 5_000 else min(ms, 5))


class GatewayDouble(execution_pb2_grpc.ExecutionServiceServicer):
    """Takes commands and serves a journal that the test writes."""

    service = EXECUTION

    def __init__(self, clock: Clock, epoch: str = "epoch_1", bus_id: str = "bus_remote") -> None:
        self.journal = Journal(epoch=epoch, clock=clock)
        self.bus_id = bus_id
        self.past_items: dict[str, Sequence[StreamItem]] = {}
        self.commands: list[ExecutionCommand] = []
        self.peers: list[Peer] = []
        self.calls: list[str] = []
        self.questions: set[str] = set()
        self.failures: list[Exception | grpc.StatusCode] = []
        """What the next calls do after their work: raise, or lose their answer with a status."""
        self.foreign_runs: set[str] = set()
        self.subscribed = anyio.Event()
        """Set by the first subscription."""
        self._boundary: Boundary | None = None

    def register(self, server: grpc.aio.Server, boundary: Boundary) -> None:
        self._boundary = boundary
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, server)

    @property
    def boundary(self) -> Boundary:
        assert self._boundary is not None
        return self._boundary

    async def SubmitExecution(
        self, request: pb.SubmitExecutionRequest, context: CallContext
    ) -> pb.SubmitReceipt:
        return await self._answer(context, self._submit, request)

    async def CancelRun(
        self, request: pb.CancelRunRequest, context: CallContext
    ) -> pb.CancelRunResponse:
        async def cancel(_: object, __: Peer) -> pb.CancelRunResponse:
            self.calls.append(f"cancel {request.run_id} {request.reason}")
            return pb.CancelRunResponse(found=True)

        return await self._answer(context, cancel, request)

    async def SteerRun(self, request: pb.SteerRunRequest, context: CallContext) -> pb.SteerOutcome:
        async def steer(_: object, __: Peer) -> pb.SteerOutcome:
            self.calls.append(f"steer {request.run_id} {request.text}")
            return pb.SteerOutcome(
                submission_run_id=request.submission_run_id, mode=request.mode, accepted=True
            )

        return await self._answer(context, steer, request)

    async def GetRun(self, request: pb.GetRunRequest, context: CallContext) -> pb.RunSnapshot:
        async def get_run(_: object, __: Peer) -> pb.RunSnapshot:
            snapshot = self.journal.snapshot(request.run_id)
            if snapshot is None:
                raise RunNotFound(request.run_id)
            return snapshot_to_message(snapshot)

        return await self._answer(context, get_run, request)

    async def ListRuns(
        self, request: pb.ListRunsRequest, context: CallContext
    ) -> pb.ListRunsResponse:
        raise NotImplementedError

    async def ResolveApproval(
        self, request: pb.ResolveApprovalRequest, context: CallContext
    ) -> pb.ResolveApprovalResponse:
        async def resolve(_: object, __: Peer) -> pb.ResolveApprovalResponse:
            self.calls.append(f"resolve {request.approval_id} {request.decision}")
            is_open = request.approval_id in self.questions
            self.questions.discard(request.approval_id)
            return pb.ResolveApprovalResponse(resolved=is_open)

        return await self._answer(context, resolve, request)

    async def GetHealth(
        self, request: pb.GetHealthRequest, context: CallContext
    ) -> pb.HealthReport:
        async def health(_: object, peer: Peer) -> pb.HealthReport:
            self.peers.append(peer)
            return health_to_message(self.report())

        return await self._answer(context, health, request)

    # grpc takes a coroutine that writes through its context as well as an iterator.
    async def SubscribeRuns(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SubscribeControl], context: CallContext
    ) -> None:
        await self.boundary.serve_stream(
            context,
            request_iterator,
            self.journal,
            past=self._past,
            allowed=self._allowed,
        )

    def report(self) -> HealthReport:
        return HealthReport(
            "lemon_gateway",
            "2024-01-01T00:00:00Z",
            (HealthCheck("scheduler", True),),
            "node_1",
            self.journal.epoch,
            self.bus_id,
        )

    def _allowed(self, _: Peer, run_id: str) -> bool:
        self.subscribed.set()
        return run_id not in self.foreign_runs

    async def _past(self, run_id: str) -> Sequence[StreamItem]:
        return self.past_items.get(run_id, ())

    async def _submit(self, request: pb.SubmitExecutionRequest, peer: Peer) -> pb.SubmitReceipt:
        command = command_from_message(request.command, now_ms=NOW_MS)
        assert request.command_digest == command.digest()
        known = any(other.run_id == command.run_id for other in self.commands)
        if not known:
            self.commands.append(command)
        self.calls.append(f"submit {command.run_id}")
        epoch = self.journal.epoch
        return receipt_to_message(
            SubmitReceipt(command.run_id, "duplicate" if known else "accepted", "node_1", epoch)
        )

    async def _answer(
        self,
        context: CallContext,
        handler: Callable[[_Request, Peer], Awaitable[_Response]],
        request: _Request,
    ) -> _Response:
        async def handle(request: _Request, peer: Peer) -> _Response:
            answer = await handler(request, peer)
            await _fail(context, self.failures)
            return answer

        return await self.boundary.answer(context, handle, request)


async def _fail(context: CallContext, failures: list[Exception | grpc.StatusCode]) -> None:
    if failures:
        failure = failures.pop(0)
        if isinstance(failure, grpc.StatusCode):
            await context.abort(failure, "the answer is lost")
        raise failure


@asynccontextmanager
async def serving(
    double: GatewayDouble | RouterDouble,
    listen: Listen,
    clock: Clock,
    *,
    tokens: Sequence[TokenRow] = (),
    options: ServingOptions | None = None,
) -> AsyncIterator[RunningServer]:
    """The double behind a server on `listen`."""
    async with running_server(
        listen,
        register=double.register,
        services=(double.service,),
        clock=clock,
        options=options,
        tokens=tokens,
    ) as server:
        yield server


class RouterDouble(router_pb2_grpc.RouterServiceServicer):
    """Takes requests and serves a journal that the test writes."""

    service = ROUTER

    def __init__(self, clock: Clock, epoch: str = "router_epoch_1") -> None:
        self.journal = Journal(epoch=epoch, clock=clock)
        self.requests: list[RunRequest] = []
        self.calls: list[str] = []
        self.failures: list[Exception | grpc.StatusCode] = []
        self.runs: list[RunInfo] = []
        self.sessions: list[SessionView] = []
        self.active: dict[str, str] = {}
        self.inbound: list[InboundMessage] = []
        self.questions: list[PendingApproval] = []
        self.settings = SessionSettings("m", "low")
        self._boundary: Boundary | None = None

    def register(self, server: grpc.aio.Server, boundary: Boundary) -> None:
        self._boundary = boundary
        router_pb2_grpc.add_RouterServiceServicer_to_server(self, server)

    async def SubmitRun(
        self, request: router_pb.RunRequest, context: CallContext
    ) -> router_pb.SubmitResult:
        async def submit(message: router_pb.RunRequest, _: Peer) -> router_pb.SubmitResult:
            run = run_request_from_message(message, now_ms=NOW_MS)
            known = any(other.run_id == run.run_id for other in self.requests)
            self.requests.append(run)
            return submit_result_to_message(SubmitResult("accepted", run.run_id, duplicate=known))

        return await self._answer(context, submit, request)

    async def HandleInbound(
        self, request: router_pb.InboundMessage, context: CallContext
    ) -> router_pb.SubmitResult:
        async def handle(message: router_pb.InboundMessage, _: Peer) -> router_pb.SubmitResult:
            inbound = inbound_from_message(message)
            known = inbound in self.inbound
            self.inbound.append(inbound)
            return submit_result_to_message(SubmitResult("accepted", "run_in", duplicate=known))

        return await self._answer(context, handle, request)

    async def ResetSession(
        self, request: router_pb.ResetSessionRequest, context: CallContext
    ) -> router_pb.ResetSessionResponse:
        self.calls.append(f"reset_session {request.session_key}")
        return router_pb.ResetSessionResponse()

    async def PatchSession(
        self, request: router_pb.PatchSessionRequest, context: CallContext
    ) -> router_pb.SessionSettings:
        model, level = patch_from_message(request)
        self.settings = SessionSettings(
            self.settings.model if isinstance(model, Unset) else model,
            self.settings.thinking_level if isinstance(level, Unset) else level,
        )
        return settings_to_message(self.settings)

    async def ListApprovals(
        self, request: router_pb.ListApprovalsRequest, context: CallContext
    ) -> router_pb.ListApprovalsResponse:
        return approvals_to_message(self.questions)

    async def ResolveApproval(
        self, request: pb.ResolveApprovalRequest, context: CallContext
    ) -> pb.ResolveApprovalResponse:
        async def resolve(
            message: pb.ResolveApprovalRequest, _: Peer
        ) -> pb.ResolveApprovalResponse:
            self.calls.append(f"resolve_approval {message.approval_id} {message.decision}")
            open_before = len(self.questions)
            self.questions = [q for q in self.questions if q.id != message.approval_id]
            return pb.ResolveApprovalResponse(resolved=len(self.questions) < open_before)

        return await self._answer(context, resolve, request)

    async def AbortSession(
        self, request: router_pb.AbortSessionRequest, context: CallContext
    ) -> router_pb.AbortSessionResponse:
        self.calls.append(f"abort_session {request.session_key} {request.reason}")
        return router_pb.AbortSessionResponse()

    async def AbortRun(
        self, request: router_pb.AbortRunRequest, context: CallContext
    ) -> router_pb.AbortRunResponse:
        self.calls.append(f"abort_run {request.run_id} {request.reason}")
        return router_pb.AbortRunResponse()

    async def KeepRunAlive(
        self, request: router_pb.KeepRunAliveRequest, context: CallContext
    ) -> router_pb.KeepRunAliveResponse:
        name = router_pb.KeepAliveDecision.Name(request.decision)
        self.calls.append(f"keep_run_alive {request.run_id} {name}")
        return router_pb.KeepRunAliveResponse()

    async def SteerRun(
        self, request: router_pb.SteerRunRequest, context: CallContext
    ) -> pb.SteerOutcome:
        self.calls.append(f"steer_run {request.run_id} {request.text}")
        return pb.SteerOutcome(
            submission_run_id=request.submission_run_id, mode=request.mode, reason="finished"
        )

    async def GetActiveRun(
        self, request: router_pb.GetActiveRunRequest, context: CallContext
    ) -> router_pb.GetActiveRunResponse:
        return router_pb.GetActiveRunResponse(run_id=self.active.get(request.session_key))

    async def ListActiveSessions(
        self, request: router_pb.ListActiveSessionsRequest, context: CallContext
    ) -> router_pb.ListActiveSessionsResponse:
        return router_pb.ListActiveSessionsResponse(
            sessions=[
                router_pb.ActiveSession(session_key=key, run_id=run_id)
                for key, run_id in self.active.items()
            ]
        )

    async def GetCounts(
        self, request: router_pb.GetCountsRequest, context: CallContext
    ) -> router_pb.Counts:
        return router_pb.Counts(active=len(self.active), queued=2, completed_today=3)

    async def GetAdmission(
        self, request: router_pb.GetAdmissionRequest, context: CallContext
    ) -> router_pb.GetAdmissionResponse:
        states = {run.run_id: run.state for run in self.runs}
        return router_pb.GetAdmissionResponse(state=states.get(request.run_id))

    async def ListSessions(
        self, request: router_pb.ListSessionsRequest, context: CallContext
    ) -> router_pb.ListSessionsResponse:
        self.calls.append(f"list_sessions {request.active_only} {request.limit}")
        return router_pb.ListSessionsResponse(
            sessions=[session_info_to_message(view.info) for view in self.sessions]
        )

    async def GetSession(
        self, request: router_pb.GetSessionRequest, context: CallContext
    ) -> router_pb.Session:
        async def get(message: router_pb.GetSessionRequest, _: Peer) -> router_pb.Session:
            for view in self.sessions:
                if view.info.session_key == message.session_key:
                    return session_to_message(view)
            raise SessionNotFound(message.session_key)

        return await self._answer(context, get, request)

    async def ListRuns(
        self, request: router_pb.ListRunsRequest, context: CallContext
    ) -> router_pb.ListRunsResponse:
        self.calls.append(f"list_runs {request.session_key} {list(request.states)}")
        return router_pb.ListRunsResponse(runs=[run_info_to_message(run) for run in self.runs])

    async def GetRun(
        self, request: router_pb.GetRunRequest, context: CallContext
    ) -> router_pb.RunInfo:
        async def get(message: router_pb.GetRunRequest, _: Peer) -> router_pb.RunInfo:
            for run in self.runs:
                if run.run_id == message.run_id:
                    return run_info_to_message(run)
            raise RunNotFound(message.run_id)

        return await self._answer(context, get, request)

    # grpc takes a coroutine that writes through its context as well as an iterator.
    async def WatchRuns(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SubscribeControl], context: CallContext
    ) -> None:
        assert self._boundary is not None
        await self._boundary.serve_stream(context, request_iterator, self.journal)

    async def GetHealth(
        self, request: pb.GetHealthRequest, context: CallContext
    ) -> pb.HealthReport:
        return pb.HealthReport(ok=True, app="lemon_router", stream_epoch=self.journal.epoch)

    async def _answer(
        self,
        context: CallContext,
        handler: Callable[[_Request, Peer], Awaitable[_Response]],
        request: _Request,
    ) -> _Response:
        async def handle(request: _Request, peer: Peer) -> _Response:
            answer = await handler(request, peer)
            await _fail(context, self.failures)
            return answer

        assert self._boundary is not None
        return await self._boundary.answer(context, handle, request)


class Proxy:
    """Stands between client and server on its own socket, and cuts all connections when told to.

    While `flowing` is not set, it passes nothing on, like a peer that has stopped.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self._target = path, target
        self.connections = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def listen(self) -> UnixListen:
        return UnixListen(self.path)

    def cut(self) -> None:
        """Break every connection now; new ones are accepted."""
        for writer in self._open:
            writer.transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Forward bytes for the block."""
        # Not anyio's sockets: theirs complain when a cancelled read turns ready in the same moment.
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield
        finally:
            server.close()
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writers = [writer]
        self._open.add(writer)
        try:
            source, sink = await asyncio.open_unix_connection(self._target)
            writers.append(sink)
            self._open.add(sink)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, reader, sink, tasks.cancel_scope)
                tasks.start_soon(self._pump, source, writer, tasks.cancel_scope)
        except OSError:
            pass  # the server is away: so is the connection
        finally:
            for each in writers:
                self._open.discard(each)
                each.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, scope: anyio.CancelScope
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        scope.cancel()
