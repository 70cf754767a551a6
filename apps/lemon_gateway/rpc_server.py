"""ExecutionService: the same runtime for other processes.

The calls are thin: convert, check what the peer may do, ask the runtime. A peer sees and steers
only the runs it submitted, unless its credentials say `admin`; the operator on the Unix socket has
every scope. What a peer submits over TCP runs under no more than the peer's own policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc.aio

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon_core.bridges import RunIdConflict, RunNotFound
from lemon_core.clock import Clock
from lemon_core.rpc.auth import Peer, TokenRow
from lemon_core.rpc.commands import (
    command_from_message,
    receipt_to_message,
    steer_mode_from_message,
    steer_outcome_to_message,
)
from lemon_core.rpc.fields import present
from lemon_core.rpc.serving import (
    Boundary,
    CallContext,
    Listen,
    RunningServer,
    ServingOptions,
    running_server,
)
from lemon_core.rpc.snapshots import health_to_message, run_state_from_message, snapshot_to_message
from lemon_core.rpc.status import PermissionDenied
from lemon_core.rpc.surface import claim_surface
from lemon_core.rpc.tls import ServerTls
from lemon_core.runs import ExecutionCommand, require_context
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_gateway.runtime import Runtime

SERVICE = "lemon.execution.v1.ExecutionService"
DEFAULT_CANCEL_REASON = "user_requested"
FOR_OTHERS_TOO = frozenset({"approve_agent", "approve_global"})


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Serves one runtime."""

    def __init__(self, runtime: Runtime, boundary: Boundary, clock: Clock) -> None:
        self._runtime, self._boundary, self._clock = runtime, boundary, clock

    # The names are the contract's.
    async def SubmitExecution(  # noqa: N802
        self, request: pb.SubmitExecutionRequest, context: CallContext
    ) -> pb.SubmitReceipt:
        """See the .proto file, as for all calls."""
        return await self._boundary.answer(context, self._submit, request)

    async def CancelRun(  # noqa: N802
        self, request: pb.CancelRunRequest, context: CallContext
    ) -> pb.CancelRunResponse:
        return await self._boundary.answer(context, self._cancel, request)

    async def SteerRun(  # noqa: N802
        self, request: pb.SteerRunRequest, context: CallContext
    ) -> pb.SteerOutcome:
        return await self._boundary.answer(context, self._steer, request)

    async def GetRun(  # noqa: N802
        self, request: pb.GetRunRequest, context: CallContext
    ) -> pb.RunSnapshot:
        return await self._boundary.answer(context, self._get_run, request)

    async def ListRuns(  # noqa: N802
        self, request: pb.ListRunsRequest, context: CallContext
    ) -> pb.ListRunsResponse:
        return await self._boundary.answer(context, self._list_runs, request)

    async def ResolveApproval(  # noqa: N802
        self, request: pb.ResolveApprovalRequest, context: CallContext
    ) -> pb.ResolveApprovalResponse:
        return await self._boundary.answer(context, self._resolve_approval, request)

    async def GetHealth(  # noqa: N802
        self, request: pb.GetHealthRequest, context: CallContext
    ) -> pb.HealthReport:
        return await self._boundary.answer(context, self._get_health, request)

    # grpc takes a coroutine that writes through its context as well as an iterator.
    async def SubscribeRuns(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SubscribeControl], context: CallContext
    ) -> None:
        await self._boundary.serve_stream(
            context,
            request_iterator,
            self._runtime.journal,
            past=self._runtime.past if self._sees_all(context) else None,
            allowed=self._allowed,
            resumed=lambda peer: partial(self._runtime.note_resumed, peer.id),
        )

    async def _submit(self, request: pb.SubmitExecutionRequest, peer: Peer) -> pb.SubmitReceipt:
        command = command_from_message(
            request.command,
            now_ms=self._clock.now_ms(),
            expected_node_id=self._runtime.node_id,
            allowed_roots=None if peer.local else self._runtime.peer_roots,
        )
        if request.command_digest and request.command_digest != command.digest():
            raise RunIdConflict(command.run_id)
        command = _under_peer(command, peer)
        owner = None if peer.local else peer.id
        entry_owner = self._runtime.owner(command.run_id)
        if entry_owner is not None and not (peer.is_admin or entry_owner == peer.id):
            raise PermissionDenied(f"run {command.run_id} was submitted by another peer")
        return receipt_to_message(await self._runtime.submit(command, owner=owner))

    async def _cancel(self, request: pb.CancelRunRequest, peer: Peer) -> pb.CancelRunResponse:
        run_id = self._own_run(request.run_id, peer)
        reason = request.reason or DEFAULT_CANCEL_REASON
        return pb.CancelRunResponse(found=await self._runtime.cancel(run_id, reason))

    async def _steer(self, request: pb.SteerRunRequest, peer: Peer) -> pb.SteerOutcome:
        run_id = self._own_run(request.run_id, peer)
        submission = present(request.submission_run_id, "submission_run_id")
        mode = steer_mode_from_message(request.mode)
        return steer_outcome_to_message(
            await self._runtime.steer(run_id, submission, request.text, mode)
        )

    async def _get_run(self, request: pb.GetRunRequest, peer: Peer) -> pb.RunSnapshot:
        run_id = self._own_run(request.run_id, peer)
        if not (peer.is_admin or self._runtime.journal.known(run_id)):
            # Whose run it was is forgotten, so it is nobody's but an admin's.
            raise RunNotFound(run_id)
        snapshot = await self._runtime.get_run(run_id)
        if snapshot is None:
            raise RunNotFound(run_id)
        return snapshot_to_message(snapshot)

    async def _list_runs(self, request: pb.ListRunsRequest, peer: Peer) -> pb.ListRunsResponse:
        states = [run_state_from_message(state) for state in request.states]
        session_key = request.session_key if request.HasField("session_key") else None
        found = self._runtime.list_runs(states, session_key)
        runs = [
            snapshot_to_message(snapshot, lean=True)
            for snapshot in found
            if self._allowed(peer, snapshot.run_id)
        ]
        return pb.ListRunsResponse(runs=runs)

    async def _resolve_approval(
        self, request: pb.ResolveApprovalRequest, peer: Peer
    ) -> pb.ResolveApprovalResponse:
        approval_id = present(request.approval_id, "approval_id")
        decision = present(request.decision, "decision")
        if not peer.is_admin:
            await self._require_answerable(approval_id, decision, peer)
        resolved = await self._runtime.resolve_approval(approval_id, decision)
        return pb.ResolveApprovalResponse(resolved=resolved)

    async def _require_answerable(self, approval_id: str, decision: str, peer: Peer) -> None:
        """Raises `PermissionDenied` for another peer's question, and for an answer that would hold
        for other people's runs."""
        pending = await self._runtime.load_pending(approval_id)
        if pending is None:
            return  # nothing is answered either
        if pending.run_id is None or self._runtime.owner(pending.run_id) != peer.id:
            raise PermissionDenied(f"approval {approval_id} is of no run of peer {peer.id}")
        if decision in FOR_OTHERS_TOO:
            raise PermissionDenied(f"{decision} needs the scope admin: use approve_once or deny")

    async def _get_health(self, _: pb.GetHealthRequest, __: Peer) -> pb.HealthReport:
        return health_to_message(await self._runtime.health())

    def _own_run(self, run_id: str, peer: Peer) -> str:
        """`run_id`; raises `PermissionDenied` when the run is another peer's."""
        if not self._allowed(peer, present(run_id, "run_id")):
            raise PermissionDenied(f"run {run_id} was submitted by another peer")
        return run_id

    def _allowed(self, peer: Peer, run_id: str) -> bool:
        """True for the peer's own runs, and for unknown ones: there is nothing to tell of them."""
        if peer.is_admin or not self._runtime.journal.known(run_id):
            return True
        return self._runtime.owner(run_id) == peer.id

    def _sees_all(self, context: CallContext) -> bool:
        return self._boundary.peer(context).is_admin


def _under_peer(command: ExecutionCommand, peer: Peer) -> ExecutionCommand:
    """`command` with no more authority than its peer; raises `PermissionDenied`."""
    context = require_context(command)
    origin = context.provenance.origin
    if not peer.allows_origin(origin):
        raise PermissionDenied(f"peer {peer.id} may not submit runs of origin {origin}")
    if peer.policy is None:
        return command
    return command.model_copy(update={"execution_context": context.narrowed(peer.policy)})


@asynccontextmanager
async def serving_execution(
    runtime: Runtime,
    listen: Listen,
    clock: Clock,
    options: ServingOptions,
    tokens: tuple[TokenRow, ...] = (),
    tls: ServerTls | None = None,
) -> AsyncIterator[RunningServer]:
    """ExecutionService of `runtime` on `listen`; raises what `running_server` raises."""

    def register(server: grpc.aio.Server, boundary: Boundary) -> None:
        service = ExecutionService(runtime, boundary, clock)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)

    async with running_server(
        listen,
        register=register,
        services=[SERVICE],
        clock=clock,
        options=options,
        tokens=tokens,
        tls=tls,
    ) as server:
        yield server


@asynccontextmanager
async def serving_configured(core: CoreRuntime, runtime: Runtime) -> AsyncIterator[RunningServer]:
    """ExecutionService of `runtime` as `[gateway.rpc]` says.

    Raises also what `claim_surface` does, for an address that is taken or a secret that is missing.
    """
    surface = await claim_surface(core, core.config.gateway.rpc, "gateway.rpc")
    async with serving_execution(
        runtime, surface.listen, core.clock, surface.options, surface.tokens, surface.tls
    ) as server:
        yield server
