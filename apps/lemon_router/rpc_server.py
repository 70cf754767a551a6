"""RouterService: the router for outside clients.

The calls are thin: convert, check what the peer may do, ask the router. Without the scope `admin`
a peer sees, steers and ends only what belongs to runs it submitted. The principal of a run comes
from the connection, never from the message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc.aio

from lemon.execution.v1 import execution_pb2 as epb
from lemon.router.v1 import router_pb2 as pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core import session_key as session_keys
from lemon_core.bridges import HealthReport, RunNotFound
from lemon_core.clock import Clock
from lemon_core.events import PendingApproval
from lemon_core.execution_context import Principal
from lemon_core.router_views import SessionNotFound
from lemon_core.rpc.auth import Peer
from lemon_core.rpc.commands import (
    run_request_from_message,
    steer_mode_from_message,
    steer_outcome_to_message,
    submit_result_to_message,
)
from lemon_core.rpc.fields import present
from lemon_core.rpc.inbound import inbound_from_message
from lemon_core.rpc.router_messages import (
    approvals_to_message,
    patch_from_message,
    run_info_to_message,
    session_info_to_message,
    session_to_message,
    settings_to_message,
)
from lemon_core.rpc.serving import Boundary, running_server
from lemon_core.rpc.snapshots import health_to_message
from lemon_core.rpc.status import PermissionDenied
from lemon_core.rpc.surface import claim_surface
from lemon_core.rpc.wire_json import InvalidMessage
from lemon_core.runs import THINKING_LEVELS
from lemon_core.runtime import Runtime
from lemon_core.session_key import InvalidSessionKey
from lemon_core.tool_policy import ToolPolicy
from lemon_router.policy import OPERATOR, Caller
from lemon_router.questions import Questions
from lemon_router.router import Router
from lemon_router.sessions import Sessions
from lemon_router.views import Views, sees

if TYPE_CHECKING:
    # The generated base class leaves both type parameters open.
    Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "lemon.router.v1.RouterService"
DEFAULT_REASON: Final = "user_requested"
# Origins of a token that names none: what no app of this machine speaks for.
OUTSIDE_ORIGINS: Final = frozenset({"node", "unknown"})
# Answers that would hold for runs of other people too.
FOR_OTHERS_TOO: Final = frozenset({"approve_agent", "approve_global"})
DECISIONS: Final[dict[int, Literal["continue", "cancel"]]] = {
    pb.KEEP_ALIVE_DECISION_CONTINUE: "continue",
    pb.KEEP_ALIVE_DECISION_CANCEL: "cancel",
}


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


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What the calls are answered from; `report` is the router's health."""

    router: Router
    views: Views
    sessions: Sessions
    questions: Questions
    report: Callable[[], Awaitable[HealthReport]]


class RouterService(router_pb2_grpc.RouterServiceServicer):
    """Serves one router."""

    def __init__(self, parts: RouterParts, boundary: Boundary, clock: Clock) -> None:
        self._router, self._views = parts.router, parts.views
        self._sessions, self._questions = parts.sessions, parts.questions
        self._report, self._boundary, self._clock = parts.report, boundary, clock

    # The names are the contract's; the .proto file says what each call does.
    async def SubmitRun(self, request: pb.RunRequest, context: Context) -> pb.SubmitResult:  # noqa: N802
        """See the .proto file, as for all calls."""
        return await self._boundary.answer(context, self._submit, request)

    async def HandleInbound(  # noqa: N802
        self, request: pb.InboundMessage, context: Context
    ) -> pb.SubmitResult:
        return await self._boundary.answer(context, self._handle_inbound, request)

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

    async def ResetSession(  # noqa: N802
        self, request: pb.ResetSessionRequest, context: Context
    ) -> pb.ResetSessionResponse:
        return await self._boundary.answer(context, self._reset_session, request)

    async def PatchSession(  # noqa: N802
        self, request: pb.PatchSessionRequest, context: Context
    ) -> pb.SessionSettings:
        return await self._boundary.answer(context, self._patch_session, request)

    async def ListRuns(  # noqa: N802
        self, request: pb.ListRunsRequest, context: Context
    ) -> pb.ListRunsResponse:
        return await self._boundary.answer(context, self._list_runs, request)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.RunInfo:  # noqa: N802
        return await self._boundary.answer(context, self._get_run, request)

    async def ListApprovals(  # noqa: N802
        self, request: pb.ListApprovalsRequest, context: Context
    ) -> pb.ListApprovalsResponse:
        return await self._boundary.answer(context, self._list_approvals, request)

    async def ResolveApproval(  # noqa: N802
        self, request: epb.ResolveApprovalRequest, context: Context
    ) -> epb.ResolveApprovalResponse:
        return await self._boundary.answer(context, self._resolve_approval, request)

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
        run_request = run_request_from_message(request, now_ms=self._clock.now_ms())
        result = await self._router.submit(run_request, caller_of(peer))
        return submit_result_to_message(result)

    async def _handle_inbound(self, message: pb.InboundMessage, peer: Peer) -> pb.SubmitResult:
        inbound = inbound_from_message(message)
        return submit_result_to_message(await self._router.handle_inbound(inbound, caller_of(peer)))

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
            peer, active_only=request.active_only, limit=request.limit or 100
        )
        return pb.ListSessionsResponse(sessions=[session_info_to_message(info) for info in found])

    async def _get_session(self, request: pb.GetSessionRequest, peer: Peer) -> pb.Session:
        key = present(request.session_key, "session_key")
        view = await self._views.session(key, peer, run_limit=request.run_limit or 10)
        if view is None:
            raise SessionNotFound(key)
        return session_to_message(view)

    async def _reset_session(
        self, request: pb.ResetSessionRequest, peer: Peer
    ) -> pb.ResetSessionResponse:
        await self._sessions.reset(await self._own_session(request.session_key, peer))
        return pb.ResetSessionResponse()

    async def _patch_session(
        self, request: pb.PatchSessionRequest, peer: Peer
    ) -> pb.SessionSettings:
        key = await self._own_session(request.session_key, peer)
        model, level = patch_from_message(request)
        if isinstance(level, str) and level not in THINKING_LEVELS:
            raise InvalidMessage("thinking_level", f"use one of {', '.join(THINKING_LEVELS)}")
        return settings_to_message(await self._sessions.patch(key, model, level))

    async def _list_runs(self, request: pb.ListRunsRequest, peer: Peer) -> pb.ListRunsResponse:
        found = await self._views.runs(
            peer,
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

    async def _list_approvals(
        self, _: pb.ListApprovalsRequest, peer: Peer
    ) -> pb.ListApprovalsResponse:
        found = await self._questions.pending()
        if not peer.is_admin:
            found = [question for question in found if await self._is_own(question, peer)]
        return approvals_to_message(found)

    async def _resolve_approval(
        self, request: epb.ResolveApprovalRequest, peer: Peer
    ) -> epb.ResolveApprovalResponse:
        approval_id = present(request.approval_id, "approval_id")
        decision = present(request.decision, "decision")
        if not peer.is_admin:
            await self._require_answerable(approval_id, decision, peer)
        resolved = await self._questions.resolve(approval_id, decision)
        return epb.ResolveApprovalResponse(resolved=resolved)

    async def _require_answerable(self, approval_id: str, decision: str, peer: Peer) -> None:
        """Raises `PermissionDenied` for another peer's question, and for an answer that would hold
        for other people's runs."""
        question = await self._questions.load(approval_id)
        if question is None:
            return  # nothing is answered either
        if not await self._is_own(question, peer):
            raise PermissionDenied(f"approval {approval_id} is of no run of peer {peer.id}")
        if decision in FOR_OTHERS_TOO:
            raise PermissionDenied(f"{decision} needs the scope admin: use approve_once or deny")

    async def _is_own(self, question: PendingApproval, peer: Peer) -> bool:
        record = None
        if question.run_id is not None:
            record = await self._router.record(question.run_id)
        return record is not None and sees(peer, record)

    async def _health(self, _: epb.GetHealthRequest, __: Peer) -> epb.HealthReport:
        return health_to_message(await self._report())

    async def _own_session(self, session_key: str, peer: Peer) -> str:
        """`session_key`; raises `InvalidMessage`, and `PermissionDenied` when it is not the peer's
        alone."""
        try:
            session_keys.parse(present(session_key, "session_key"))
        except InvalidSessionKey as exc:
            raise InvalidMessage("session_key", str(exc)) from exc
        if not await self._views.owns_session(session_key, peer):
            raise PermissionDenied(f"session {session_key} has runs of others, or none of yours")
        return session_key

    async def _own_run(self, run_id: str, peer: Peer) -> str:
        """`run_id`; raises `PermissionDenied` when the run is another peer's."""
        present(run_id, "run_id")
        if not peer.is_admin:
            record = await self._router.record(run_id)
            if record is not None and not sees(peer, record):
                raise PermissionDenied(f"run {run_id} was submitted by another peer")
        return run_id

    def _sees_all(self, context: Context) -> bool:
        return self._boundary.peer(context).is_admin


@asynccontextmanager
async def serving(runtime: Runtime, parts: RouterParts) -> AsyncIterator[str]:
    """RouterService of these parts where `[router.rpc]` says; yields its address.

    Raises what `claim_surface` and `running_server` raise.
    """
    surface = await claim_surface(runtime, runtime.config.router.rpc, "router.rpc")

    def register(server: grpc.aio.Server, boundary: Boundary) -> None:
        service = RouterService(parts, boundary, runtime.clock)
        router_pb2_grpc.add_RouterServiceServicer_to_server(service, server)

    async with running_server(
        surface.listen,
        register=register,
        services=[SERVICE],
        clock=runtime.clock,
        options=surface.options,
        tokens=surface.tokens,
        tls=surface.tls,
    ) as server:
        yield server.address
