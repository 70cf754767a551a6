"""RouterService: the router for outside clients.

The calls are thin: convert, check what the peer may do, ask the router. Without the scope `admin`
a peer sees, steers and ends only what belongs to runs it submitted. The principal of a run comes
from the connection, never from the message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc.aio

from lemon.execution.v1 import execution_pb2 as epb
from lemon.router.v1 import router_pb2 as pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core.bridges import HealthCheck, HealthReport, RunNotFound
from lemon_core.execution_context import Principal
from lemon_core.rpc.auth import Peer
from lemon_core.rpc.commands import (
    run_request_from_message,
    steer_mode_from_message,
    steer_outcome_to_message,
    submit_result_to_message,
)
from lemon_core.rpc.fields import present
from lemon_core.rpc.router_messages import (
    run_info_to_message,
    session_info_to_message,
    session_to_message,
)
from lemon_core.rpc.serving import Boundary, running_server
from lemon_core.rpc.snapshots import health_to_message
from lemon_core.rpc.status import PermissionDenied
from lemon_core.rpc.surface import claim_surface
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.runtime import Runtime
from lemon_core.tool_policy import ToolPolicy
from lemon_router.admission import Admission
from lemon_router.policy import OPERATOR, Caller
from lemon_router.router import Router
from lemon_router.views import Views, Visible

if TYPE_CHECKING:
    # The generated base class leaves both type parameters open.
    Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "lemon.router.v1.RouterService"
DEFAULT_REASON: Final = "user_requested"
# Origins of a token that names none: what no app of this machine speaks for.
OUTSIDE_ORIGINS: Final = frozenset({"node", "unknown"})
DECISIONS: Final[dict[int, Literal["continue", "cancel"]]] = {
    pb.KEEP_ALIVE_DECISION_CONTINUE: "continue",
    pb.KEEP_ALIVE_DECISION_CANCEL: "cancel",
}


class SessionNotFound(RunNotFound):
    """Nobody here knows the session."""

    def __init__(self, session_key: str) -> None:
        super().__init__(session_key)
        self.args = (f"no session {session_key} is known here",)


def caller_of(peer: Peer) -> Caller:
    """What the router needs to know of a proven peer."""
    if peer.local:
        return Caller(id=peer.id, principal=OPERATOR, admin=peer.is_admin)
    return Caller(
        id=peer.id,
        principal=Principal(kind="node", id=peer.id),
        origins=OUTSIDE_ORIGINS if peer.origins is None else peer.origins,
        policy=peer.policy or ToolPolicy.of_profile("safe_mode"),
        admin=peer.is_admin,
        confined=True,
    )


class RouterService(router_pb2_grpc.RouterServiceServicer):
    """Serves one router."""

    def __init__(
        self, router: Router, views: Views, boundary: Boundary, runtime: Runtime, node_id: str
    ) -> None:
        self._router, self._views, self._boundary = router, views, boundary
        self._runtime, self._node_id = runtime, node_id

    # The names are the contract's; the .proto file says what each call does.
    async def SubmitRun(self, request: pb.RunRequest, context: Context) -> pb.SubmitResult:  # noqa: N802
        """See the .proto file, as for all calls."""
        return await self._boundary.answer(context, self._submit, request)

    async def AbortSession(  # noqa: N802
        self, request: pb.AbortSessionRequest, context: Context
    ) -> pb.AbortSessionResponse:
        return await self._boundary.answer(context, self._abort_session, request)

    async def AbortRun(  # noqa: N802
        self, request: pb.AbortRunRequest, context: Context
    ) -> pb.AbortRunResponse:
        return await self._boundary.answer(context, self._abort_run, request)

    async def KeepRunAlive(  # noqa: N802
        self, request: pb.KeepRunAliveRequest, context: Context
    ) -> pb.KeepRunAliveResponse:
        return await self._boundary.answer(context, self._keep_run_alive, request)

    async def SteerRun(  # noqa: N802
        self, request: pb.SteerRunRequest, context: Context
    ) -> epb.SteerOutcome:
        return await self._boundary.answer(context, self._steer, request)

    async def GetActiveRun(  # noqa: N802
        self, request: pb.GetActiveRunRequest, context: Context
    ) -> pb.GetActiveRunResponse:
        return await self._boundary.answer(context, self._active_run, request)

    async def ListActiveSessions(  # noqa: N802
        self, request: pb.ListActiveSessionsRequest, context: Context
    ) -> pb.ListActiveSessionsResponse:
        return await self._boundary.answer(context, self._active_sessions, request)

    async def GetCounts(self, request: pb.GetCountsRequest, context: Context) -> pb.Counts:  # noqa: N802
        return await self._boundary.answer(context, self._counts, request)

    async def GetAdmission(  # noqa: N802
        self, request: pb.GetAdmissionRequest, context: Context
    ) -> pb.GetAdmissionResponse:
        return await self._boundary.answer(context, self._admission, request)

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        return await self._boundary.answer(context, self._list_sessions, request)

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.Session:  # noqa: N802
        return await self._boundary.answer(context, self._get_session, request)

    async def ListRuns(  # noqa: N802
        self, request: pb.ListRunsRequest, context: Context
    ) -> pb.ListRunsResponse:
        return await self._boundary.answer(context, self._list_runs, request)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.RunInfo:  # noqa: N802
        return await self._boundary.answer(context, self._get_run, request)

    async def GetHealth(  # noqa: N802
        self, request: epb.GetHealthRequest, context: Context
    ) -> epb.HealthReport:
        return await self._boundary.answer(context, self._health, request)

    # grpc takes a coroutine that writes through its context as well as an iterator.
    async def WatchRuns(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[epb.SubscribeControl], context: Context
    ) -> None:
        await self._boundary.serve_stream(
            context,
            request_iterator,
            self._router.journal,
            past=self._views.past if self._sees_all(context) else None,
            allowed=lambda peer, run_id: peer.is_admin or self._router.owner(run_id) == peer.id,
        )

    async def _submit(self, request: pb.RunRequest, peer: Peer) -> pb.SubmitResult:
        run_request = run_request_from_message(request, now_ms=self._runtime.clock.now_ms())
        result = await self._router.submit(run_request, caller_of(peer))
        return submit_result_to_message(result)

    async def _abort_session(
        self, request: pb.AbortSessionRequest, peer: Peer
    ) -> pb.AbortSessionResponse:
        key = present(request.session_key, "session_key")
        owned = None if peer.is_admin else peer.id
        await self._router.abort_session_of(key, request.reason or DEFAULT_REASON, owner=owned)
        return pb.AbortSessionResponse()

    async def _abort_run(self, request: pb.AbortRunRequest, peer: Peer) -> pb.AbortRunResponse:
        run_id = await self._own_run(request.run_id, peer)
        await self._router.abort_run(run_id, request.reason or DEFAULT_REASON)
        return pb.AbortRunResponse()

    async def _keep_run_alive(
        self, request: pb.KeepRunAliveRequest, peer: Peer
    ) -> pb.KeepRunAliveResponse:
        run_id = await self._own_run(request.run_id, peer)
        decision = DECISIONS.get(request.decision)
        if decision is None:
            raise InvalidMessage("KeepRunAliveRequest", "decision is required")
        await self._router.keep_run_alive(run_id, decision)
        return pb.KeepRunAliveResponse()

    async def _steer(self, request: pb.SteerRunRequest, peer: Peer) -> epb.SteerOutcome:
        run_id = await self._own_run(request.run_id, peer)
        submission = present(request.submission_run_id, "submission_run_id")
        mode = steer_mode_from_message(request.mode)
        return steer_outcome_to_message(
            await self._router.steer_run(run_id, request.text, mode, submission)
        )

    async def _active_run(
        self, request: pb.GetActiveRunRequest, peer: Peer
    ) -> pb.GetActiveRunResponse:
        run_id = await self._router.active_run(present(request.session_key, "session_key"))
        if run_id is None or not (peer.is_admin or self._router.owner(run_id) == peer.id):
            return pb.GetActiveRunResponse()
        return pb.GetActiveRunResponse(run_id=run_id)

    async def _active_sessions(
        self, _: pb.ListActiveSessionsRequest, peer: Peer
    ) -> pb.ListActiveSessionsResponse:
        rows = [
            pb.ActiveSession(session_key=row["session_key"], run_id=row["run_id"])
            for row in await self._router.list_active_sessions()
            if peer.is_admin or self._router.owner(row["run_id"]) == peer.id
        ]
        return pb.ListActiveSessionsResponse(sessions=rows)

    async def _counts(self, _: pb.GetCountsRequest, peer: Peer) -> pb.Counts:
        if not peer.is_admin:
            raise PermissionDenied("counts cover the runs of others: the scope admin is needed")
        return pb.Counts(**await self._router.counts())

    async def _admission(
        self, request: pb.GetAdmissionRequest, peer: Peer
    ) -> pb.GetAdmissionResponse:
        run_id = await self._own_run(request.run_id, peer)
        state = await self._router.admission(run_id)
        return pb.GetAdmissionResponse(state=state)

    async def _list_sessions(
        self, request: pb.ListSessionsRequest, peer: Peer
    ) -> pb.ListSessionsResponse:
        found = await self._views.sessions(
            visible_to(peer), active_only=request.active_only, limit=request.limit or 100
        )
        return pb.ListSessionsResponse(sessions=[session_info_to_message(info) for info in found])

    async def _get_session(self, request: pb.GetSessionRequest, peer: Peer) -> pb.Session:
        key = present(request.session_key, "session_key")
        view = await self._views.session(key, visible_to(peer), run_limit=request.run_limit or 10)
        if view is None:
            raise SessionNotFound(key)
        return session_to_message(view)

    async def _list_runs(self, request: pb.ListRunsRequest, peer: Peer) -> pb.ListRunsResponse:
        found = await self._views.runs(
            visible_to(peer),
            session_key=request.session_key if request.HasField("session_key") else None,
            states=tuple(request.states),
            limit=request.limit or 100,
        )
        return pb.ListRunsResponse(runs=[run_info_to_message(info) for info in found])

    async def _get_run(self, request: pb.GetRunRequest, peer: Peer) -> pb.RunInfo:
        run_id = await self._own_run(request.run_id, peer)
        info = await self._views.run(run_id)
        if info is None:
            raise RunNotFound(run_id)
        return run_info_to_message(info)

    async def _health(self, _: epb.GetHealthRequest, __: Peer) -> epb.HealthReport:
        available = await self._router.engine_available()
        checks = (
            HealthCheck("run_counts", ok=True, detail=await self._router.counts()),
            # The router queues while the gateway is away: that is no failure of the router.
            HealthCheck("engine_runtime", ok=True, detail={"available": available}),
        )
        report = HealthReport(
            app="lemon_router",
            timestamp=datetime.now(UTC).isoformat(timespec="milliseconds"),
            checks=checks,
            node_id=self._node_id,
            stream_epoch=self._router.journal.epoch,
            bus_id=self._runtime.bus.id,
        )
        return health_to_message(report)

    async def _own_run(self, run_id: str, peer: Peer) -> str:
        """`run_id`; raises `PermissionDenied` when the run is another peer's."""
        present(run_id, "run_id")
        if not peer.is_admin:
            record = await self._router.record(run_id)
            if record is not None and record.owner != peer.id:
                raise PermissionDenied(f"run {run_id} was submitted by another peer")
        return run_id

    def _sees_all(self, context: Context) -> bool:
        return self._boundary.peer(context).is_admin


def visible_to(peer: Peer) -> Visible:
    """Which runs a peer is shown."""

    def visible(record: Admission) -> bool:
        return peer.is_admin or record.owner == peer.id

    return visible


@asynccontextmanager
async def serving(runtime: Runtime, router: Router, views: Views) -> AsyncIterator[str]:
    """RouterService of `router` where `[router.rpc]` says; yields its address.

    Raises what `claim_surface` and `running_server` raise.
    """
    surface = await claim_surface(runtime, runtime.config.router.rpc, "router.rpc")
    node_id = runtime.config.router.rpc.node_id or runtime.env.node_name

    def register(server: grpc.aio.Server, boundary: Boundary) -> None:
        service = RouterService(router, views, boundary, runtime, node_id)
        router_pb2_grpc.add_RouterServiceServicer_to_server(service, server)

    async with running_server(
        surface.listen,
        register=register,
        services=[SERVICE],
        clock=runtime.clock,
        options=surface.options,
        tokens=surface.tokens,
    ) as server:
        yield server.address
