"""The router over gRPC: `RouterPort` for producers, and every call of the service for commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio
import grpc

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon.router.v1 import router_pb2_grpc
from lemon_core import ids
from lemon_core.bridges import RunNotFound, SteerMode, SteerOutcome, SubmitResult
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.events import Event, PendingApproval
from lemon_core.router_views import RunInfo, SessionInfo, SessionNotFound, SessionView
from lemon_core.rpc.catch_up import CatchUp
from lemon_core.rpc.channel import SUBMIT_TIMEOUT_S, PeerUnavailable
from lemon_core.rpc.client import RpcClient, UnaryCall
from lemon_core.rpc.commands import (
    run_request_to_message,
    steer_mode_to_message,
    steer_outcome_from_message,
    submit_result_from_message,
)
from lemon_core.rpc.fields import writing
from lemon_core.rpc.inbound import inbound_to_message
from lemon_core.rpc.listen import Listen
from lemon_core.rpc.router_messages import (
    approvals_from_message,
    patch_to_message,
    resolve_to_message,
    run_info_from_message,
    session_from_message,
    session_info_from_message,
    settings_from_message,
)
from lemon_core.rpc.stream_client import StreamCall
from lemon_core.rpc.tls import ClientTls
from lemon_core.runs import RunRequest
from lemon_core.store.wrappers import UNSET, SessionSettings, Unset

CONNECT_TIMEOUT_S: Final = 2.0
# A reset waits for the end of what it aborts.
RESET_TIMEOUT_S: Final = 15.0

_Submission = TypeVar("_Submission", router_pb.RunRequest, router_pb.InboundMessage)

if TYPE_CHECKING:
    # Its models take milliseconds to make, and commands have no use for them.
    from lemon_core.messages import InboundMessage

_DECISIONS: Final[Mapping[Literal["continue", "cancel"], router_pb.KeepAliveDecision]] = {
    "continue": router_pb.KEEP_ALIVE_DECISION_CONTINUE,
    "cancel": router_pb.KEEP_ALIVE_DECISION_CANCEL,
}


class GrpcRouterBridge(RpcClient):
    """The router at `target` as `RouterPort`; use it as an async context manager.

    Calls that cannot be answered raise `PeerUnavailable` or core's error for the refusal.
    """

    def __init__(
        self,
        target: str | Listen,
        *,
        clock: Clock,
        token: str | None = None,
        tls: ClientTls | None = None,
        lost_after_ms: int | None = None,
    ) -> None:
        super().__init__(target, clock=clock, token=token, tls=tls, lost_after_ms=lost_after_ms)
        self._stub = router_pb2_grpc.RouterServiceStub(self._channel)

    def _open_stream(self) -> StreamCall:
        return self._stub.WatchRuns(metadata=self._metadata)

    def _health_call(self) -> UnaryCall[pb.GetHealthRequest, pb.HealthReport]:
        return self._stub.GetHealth

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        """Take a message; a run id is fixed here when there is none.

        A call whose outcome is unknown is sent once more with the same id, then the answer is
        `outcome_unknown`. Without any connection nothing was sent: `unavailable`.
        """
        if request.run_id is None:
            request = request.model_copy(update={"run_id": ids.run_id()})
        try:
            with writing("request"):
                message = run_request_to_message(request)
        except LemonError as exc:
            return _rejected(request.run_id, exc)
        return await self._submit(self._stub.SubmitRun, message, request.run_id)

    async def handle_inbound(self, message: InboundMessage) -> SubmitResult:
        """Hand over a channel's message; an outcome is unknown as in `submit_run`.

        The router makes the run id out of the message's, so a message sent again runs once.
        """
        try:
            with writing("inbound"):
                sent = inbound_to_message(message)
        except LemonError as exc:
            return _rejected(None, exc)
        return await self._submit(self._stub.HandleInbound, sent, None)

    async def _submit(
        self,
        call: UnaryCall[_Submission, router_pb.SubmitResult],
        message: _Submission,
        run_id: str | None,
    ) -> SubmitResult:
        if not await self._connected():
            return SubmitResult("unavailable", run_id, "the router does not answer")
        try:
            answer = await self._call(
                call, message, run_id=run_id or "", timeout_s=SUBMIT_TIMEOUT_S, attempts=2
            )
            return submit_result_from_message(answer)
        except PeerUnavailable:
            return SubmitResult("outcome_unknown", run_id, "the router did not answer")
        except LemonError as exc:
            return _rejected(run_id, exc)

    async def _connected(self) -> bool:
        """True once there is a connection; nothing is sent for it."""
        state = self._channel.get_state(try_to_connect=True)
        with anyio.move_on_after(CONNECT_TIMEOUT_S):
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return False
                await self._channel.wait_for_state_change(state)
                state = self._channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        """Drop what the session has queued and cancel its active run."""
        request = router_pb.AbortSessionRequest(session_key=session_key, reason=reason)
        await self._call(self._stub.AbortSession, request)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        """Drop or cancel one run; unknown ids do nothing."""
        request = router_pb.AbortRunRequest(run_id=run_id, reason=reason)
        await self._call(self._stub.AbortRun, request, run_id=run_id)

    async def keep_run_alive(self, run_id: str, decision: Literal["continue", "cancel"]) -> None:
        """Answer a watchdog's question about a silent run."""
        request = router_pb.KeepRunAliveRequest(run_id=run_id, decision=_DECISIONS[decision])
        await self._call(self._stub.KeepRunAlive, request, run_id=run_id)

    async def session_busy(self, session_key: str) -> bool:
        """True while the session has an active run."""
        return await self.active_run(session_key) is not None

    async def active_run(self, session_key: str) -> str | None:
        """The session's active run."""
        request = router_pb.GetActiveRunRequest(session_key=session_key)
        answer = await self._call(self._stub.GetActiveRun, request)
        return answer.run_id if answer.HasField("run_id") else None

    async def list_active_sessions(self) -> list[dict[str, str]]:
        """`{session_key, run_id}` of every active run."""
        answer = await self._call(
            self._stub.ListActiveSessions, router_pb.ListActiveSessionsRequest()
        )
        return [
            {"session_key": session.session_key, "run_id": session.run_id}
            for session in answer.sessions
        ]

    async def counts(self) -> dict[str, int]:
        """`active`, `queued` and `completed_today`."""
        answer = await self._call(self._stub.GetCounts, router_pb.GetCountsRequest())
        return {
            "active": answer.active,
            "queued": answer.queued,
            "completed_today": answer.completed_today,
        }

    async def admission(self, run_id: str) -> str | None:
        """The admission state of a run, to reconcile an unknown outcome."""
        request = router_pb.GetAdmissionRequest(run_id=run_id)
        answer = await self._call(self._stub.GetAdmission, request, run_id=run_id)
        return answer.state if answer.HasField("state") else None


def _rejected(run_id: str | None, error: LemonError) -> SubmitResult:
    return SubmitResult("rejected", run_id, f"{error.code}: {error}"[:300])


class RouterClient(GrpcRouterBridge):
    """Every call of RouterService.

    A watched run ends with `StreamLost` when there is no connection for `lost_after_ms`.
    """

    def __init__(
        self,
        target: str | Listen,
        *,
        clock: Clock,
        token: str | None = None,
        lost_after_ms: int | None = 30_000,
    ) -> None:
        super().__init__(target, clock=clock, token=token, lost_after_ms=lost_after_ms)

    async def steer_run(
        self, run_id: str, text: str, mode: SteerMode, submission_run_id: str
    ) -> SteerOutcome:
        """Give a run more input; idempotent by `submission_run_id`."""
        with writing("text"):
            request = router_pb.SteerRunRequest(
                run_id=run_id,
                text=text,
                mode=steer_mode_to_message(mode),
                submission_run_id=submission_run_id,
            )
        answer = await self._call(self._stub.SteerRun, request, run_id=run_id)
        return steer_outcome_from_message(answer)

    async def list_sessions(
        self, *, active_only: bool = False, limit: int | None = None
    ) -> list[SessionInfo]:
        """Stored and active sessions, last used first; without a limit the server's default."""
        request = router_pb.ListSessionsRequest(active_only=active_only, limit=limit or 0)
        answer = await self._call(self._stub.ListSessions, request)
        return [session_info_from_message(session) for session in answer.sessions]

    async def get_session(
        self, session_key: str, run_limit: int | None = None
    ) -> SessionView | None:
        """One session with its settings and recent runs; None when it is unknown."""
        request = router_pb.GetSessionRequest(session_key=session_key, run_limit=run_limit or 0)
        try:
            return session_from_message(
                await self._call(self._stub.GetSession, request, run_id=session_key)
            )
        except SessionNotFound:
            return None

    async def list_runs(
        self,
        session_key: str | None = None,
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Active and recent runs, newest first."""
        request = router_pb.ListRunsRequest(
            session_key=session_key, states=states, limit=limit or 0
        )
        answer = await self._call(self._stub.ListRuns, request)
        return [run_info_from_message(run) for run in answer.runs]

    async def get_run(self, run_id: str) -> RunInfo | None:
        """One run; None when it is unknown."""
        request = router_pb.GetRunRequest(run_id=run_id)
        try:
            return run_info_from_message(
                await self._call(self._stub.GetRun, request, run_id=run_id)
            )
        except RunNotFound:
            return None

    async def reset_session(self, session_key: str) -> None:
        """End what the session has, and forget its history, its policy and its choices."""
        request = router_pb.ResetSessionRequest(session_key=session_key)
        await self._call(
            self._stub.ResetSession, request, run_id=session_key, timeout_s=RESET_TIMEOUT_S
        )

    async def patch_session(
        self,
        session_key: str,
        *,
        model: str | Unset | None = UNSET,
        thinking_level: str | Unset | None = UNSET,
    ) -> SessionSettings:
        """Change the session's sticky choices (None takes one back); what they are then."""
        with writing("settings"):
            request = patch_to_message(session_key, model, thinking_level)
        return settings_from_message(await self._call(self._stub.PatchSession, request))

    async def list_approvals(self) -> list[PendingApproval]:
        """The open questions that this peer may see, oldest first."""
        request = router_pb.ListApprovalsRequest()
        return approvals_from_message(await self._call(self._stub.ListApprovals, request))

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        """Answer a question; False when it is unknown or has an answer already.

        Raises `InvalidDecision`'s `InvalidCommand` for what the question does not take.
        """
        with writing("decision"):
            request = resolve_to_message(approval_id, decision)
        return (await self._call(self._stub.ResolveApproval, request, attempts=1)).resolved

    async def watch(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[Event, None]:
        """The run's events after `after_seq` until it is over, in order, each once.

        What single events are gone for comes as few synthetic ones (see `CatchUp`). Raises
        `RunNotFound` and `StreamLost`. Close it with `contextlib.aclosing`.
        """
        known = CatchUp(run_id, self._clock)
        async with aclosing(self._streams.read(run_id, after_seq)) as items:
            async for item in items:
                for event in known.events(item):
                    yield event
