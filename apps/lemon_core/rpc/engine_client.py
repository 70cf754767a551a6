"""`EngineRuntime` over gRPC: a gateway in another process, or across this one's socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from lemon.execution.v1 import execution_pb2 as pb
from lemon.execution.v1 import execution_pb2_grpc
from lemon_core.approval_types import DECISIONS, EVENT_TYPES, InvalidDecision
from lemon_core.approvals import TOPIC as APPROVALS_TOPIC
from lemon_core.bridges import (
    ExecutionRejected,
    HealthReport,
    RunNotFound,
    RunSnapshot,
    SteerMode,
    SteerOutcome,
    StreamItem,
    SubmitReceipt,
)
from lemon_core.bus import Bus, run_topic
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.events import Event
from lemon_core.logs import get_logger
from lemon_core.rpc.catch_up import CatchUp
from lemon_core.rpc.channel import (
    RETRY_BASE_MS,
    RETRY_MAX_MS,
    SUBMIT_TIMEOUT_S,
    PeerUnavailable,
)
from lemon_core.rpc.client import ATTEMPTS, RpcClient, UnaryCall
from lemon_core.rpc.commands import (
    command_to_message,
    receipt_from_message,
    steer_mode_to_message,
    steer_outcome_from_message,
)
from lemon_core.rpc.fields import canonical_image, writing
from lemon_core.rpc.listen import Listen
from lemon_core.rpc.run_reader import RunReader
from lemon_core.rpc.snapshots import snapshot_from_message
from lemon_core.rpc.status import PermissionDenied
from lemon_core.rpc.stream_client import StreamCall
from lemon_core.rpc.tls import ClientTls
from lemon_core.runs import (
    ExecutionCommand,
    InvalidCommand,
    require_context,
    require_conversation_key,
)
from lemon_core.util import capped_backoff

log = get_logger(__name__)


class GrpcEngineRuntime(RpcClient):
    """A gateway at `target`; use it as an async context manager.

    Events of a gateway with another bus are published on the local one, each once and in order,
    with unchanged payloads. A gateway that shares the bus has published them already.
    """

    def __init__(
        self,
        target: str | Listen,
        *,
        bus: Bus,
        clock: Clock,
        token: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        super().__init__(target, clock=clock, token=token, tls=tls, on_connected=self._meet)
        self._stub = execution_pb2_grpc.ExecutionServiceStub(self._channel)
        self._bus = bus
        self._relays: dict[str, RunReader] = {}
        self._foreign = False
        self._peer_bus_id: str | None = None

    def _open_stream(self) -> StreamCall:
        return self._stub.SubscribeRuns(metadata=self._metadata)

    def _health_call(self) -> UnaryCall[pb.GetHealthRequest, pb.HealthReport]:
        return self._stub.GetHealth

    async def available(self) -> bool:
        """True while the stream is open, else when the gateway answers and can execute."""
        if self._streams.connected:
            return True
        try:
            report = await self.health()
        except LemonError:
            return False
        return all(check.ok for check in report.checks if check.name in ("scheduler", "executor"))

    async def shares_bus(self) -> bool:
        """See `EngineRuntime`; asked of the gateway once."""
        if self._peer_bus_id is None:
            self._peer_bus_id = (await self.health()).bus_id
        return self._peer_bus_id == self._bus.id

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        """See `EngineRuntime`. An unknown outcome is settled by sending the same run id again."""
        request = _submission(command)
        try:
            message = await self._call(
                self._stub.SubmitExecution,
                request,
                run_id=command.run_id,
                timeout_s=SUBMIT_TIMEOUT_S,
            )
        except PermissionDenied as exc:
            raise InvalidCommand(f"{exc.code}: {exc}") from exc
        except PeerUnavailable as exc:
            raise ExecutionRejected(f"it does not answer ({exc})") from exc
        return receipt_from_message(message)

    async def cancel_by_run_id(self, run_id: str, reason: str = "user_requested") -> None:
        """End the run if it is queued or live. Total, idempotent, never raises."""
        request = pb.CancelRunRequest(run_id=run_id, reason=reason)
        try:
            await self._call(self._stub.CancelRun, request, run_id=run_id)
        except LemonError as exc:
            log.warning("rpc.cancel_failed", run_id=run_id, error=exc.code)

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        """See `EngineRuntime`; raises `PeerUnavailable` when it is not known what became of it."""
        with writing("text"):
            request = pb.SteerRunRequest(
                run_id=run_id,
                submission_run_id=submission_run_id,
                mode=steer_mode_to_message(mode),
                text=text,
            )
        message = await self._call(self._stub.SteerRun, request, run_id=run_id)
        return steer_outcome_from_message(message)

    async def get_run(self, run_id: str) -> RunSnapshot | None:
        """See `EngineRuntime`; raises `PeerUnavailable`, which says nothing about the run."""
        request = pb.GetRunRequest(run_id=run_id)
        try:
            message = await self._call(self._stub.GetRun, request, run_id=run_id)
        except RunNotFound:
            return None
        return snapshot_from_message(message)

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        """See `EngineRuntime`; raises `PeerUnavailable` when it is not known what became of it."""
        if decision not in DECISIONS:
            raise InvalidDecision(approval_id, decision, DECISIONS)
        request = pb.ResolveApprovalRequest(approval_id=approval_id, decision=decision)
        try:
            return await self._resolve(request)
        except InvalidCommand as exc:
            raise InvalidDecision(approval_id, decision, ()) from exc

    async def _resolve(self, request: pb.ResolveApprovalRequest) -> bool:
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._call(self._stub.ResolveApproval, request, attempts=1)
            except PeerUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                await self._clock.sleep(capped_backoff(RETRY_BASE_MS, attempt, RETRY_MAX_MS))
                continue
            if attempt and not answer.resolved:
                # By somebody else, by the end of its time, or by a call whose answer got lost.
                raise PeerUnavailable("the question is settled, perhaps by this very answer")
            return answer.resolved
        raise AssertionError("the last attempt returns or raises")

    async def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        """See `EngineRuntime`; broken connections are mended unseen."""
        if self._foreign or not self._streams.connected:
            self._relay(run_id, after_seq)
        async with aclosing(self._streams.read(run_id, after_seq)) as items:
            async for item in items:
                yield item

    def give_up(self, reason: str) -> None:
        """End every subscription with `StreamLost`: somebody knows that the gateway is gone."""
        self._streams.fail_all(reason)

    # --- the local bus ---

    def _meet(self, report: HealthReport) -> None:
        """Learn whose bus the gateway publishes on, before anything of it arrives."""
        self._peer_bus_id = report.bus_id
        self._foreign = report.bus_id != self._bus.id
        if not self._foreign:
            while self._relays:
                _, relay = self._relays.popitem()
                self._streams.remove(relay)

    def _relay(self, run_id: str, after_seq: int) -> None:
        """Publish the run's events on the local bus, once however many subscribe to it."""
        if run_id in self._relays:
            return
        known = CatchUp(run_id, self._clock)

        def publish(item: StreamItem) -> bool:
            for event in known.events(item):
                self._bus.publish(_topic(run_id, event), event)
            return True

        relay = RunReader(run_id, after_seq, publish)
        self._relays[run_id] = relay
        self._streams.add(relay)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop what is known of ended runs, oldest first, once there is a lot of it."""
        if len(self._relays) > 1_000:
            for run_id in [name for name, relay in self._relays.items() if relay.over][:500]:
                del self._relays[run_id]


def _topic(run_id: str, event: Event) -> str:
    """Where `event` is published by those whose own it is."""
    return APPROVALS_TOPIC if event.type in EVENT_TYPES else run_topic(run_id)


def _submission(command: ExecutionCommand) -> pb.SubmitExecutionRequest:
    require_conversation_key(command)
    require_context(command)
    images = tuple(canonical_image(image) for image in command.images)
    if images != command.images:
        command = command.model_copy(update={"images": images})
    with writing("command"):
        return pb.SubmitExecutionRequest(
            command=command_to_message(command), command_digest=command.digest()
        )
