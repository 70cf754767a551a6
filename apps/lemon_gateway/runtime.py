"""The gateway in process: takes commands, starts and ends runs, and answers about them.

What is in memory answers first (the register of runs and their journals), then the run store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import anyio

from lemon_core.bridges import (
    ExecutionRejected,
    HealthReport,
    ReceiptStatus,
    RunSnapshot,
    RunState,
    SteerMode,
    SteerOutcome,
    StreamItem,
    SubmitReceipt,
)
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.events import Completion, ErrorValue, PendingApproval, coerce
from lemon_core.http.health import Check, HealthChecks, timestamp
from lemon_core.ids import new_uuid
from lemon_core.journal import Journal, stream
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings
from lemon_core.phases import RunOutcome, RunPhase, infer_outcome
from lemon_core.runs import ExecutionCommand
from lemon_core.store import ProgressStore, RunRecord, RunStore, StoreError
from lemon_core.supervisor import Supervisor
from lemon_core.telemetry import Telemetry
from lemon_gateway.config import GatewaySettings
from lemon_gateway.engine_lock import EngineLock, LockLease
from lemon_gateway.errors import AlreadyStarted, ContextNotForRun, MetaNotJson
from lemon_gateway.executor import ConfiguredExecutor
from lemon_gateway.health import APP, gateway_checks
from lemon_gateway.json_values import is_json
from lemon_gateway.metrics import GatewayMetrics
from lemon_gateway.requests import ExecutionRequest
from lemon_gateway.run import Run
from lemon_gateway.run_parts import Ending, OnComplete, RunParts
from lemon_gateway.run_registry import RunEntry, RunRegistry, require_same
from lemon_gateway.scheduler import Introspection, Scheduler, running_scheduler

END_TIMEOUT_S = 4.0

log = get_logger("lemon_gateway.runtime")


class Approvals(Protocol):
    """What is needed of core's `ExecApprovals`."""

    async def resolve(self, approval_id: str, decision: str) -> bool:
        """Answer a question; False when it is not open. Raises `InvalidDecision`, `StoreError`."""

    async def load_pending(self, approval_id: str) -> PendingApproval | None:
        """The question, while it is open. Raises `StoreError`."""


class Runtime:
    """Implements core's `EngineRuntime`."""

    def __init__(
        self,
        *,
        executor: ConfiguredExecutor,
        records: RunStore,
        progress: ProgressStore,
        approvals: Approvals,
        bus: Bus,
        telemetry: Telemetry,
        clock: Clock,
        paths: PathSettings,
        settings: GatewaySettings,
        custom_checks: Callable[[], Iterable[object]] = tuple,
        introspection: Introspection | None = None,
    ) -> None:
        self.node_id = settings.node_id
        self.peer_roots = settings.peer_roots
        self.epoch = new_uuid()
        self.bus = bus
        self.journal = Journal(
            epoch=self.epoch, clock=clock, limits=settings.journal, on_drop=self._forget
        )
        self.lock = EngineLock(
            clock, max_hold_ms=settings.engine_lock_max_hold_ms, on_over_age=self._over_age
        )
        self.scheduler = Scheduler(
            self,
            clock,
            telemetry,
            max_slots=settings.max_concurrent_runs,
            introspection=introspection,
        )
        self.extra_checks: dict[str, Check] = {}
        """Checks of what stands around this runtime, such as its gRPC server."""
        self.addresses: dict[str, str] = {}
        """Where it listens: `health` (a URL) and `rpc` (a gRPC target), as far as they are open."""
        self._executor, self._records, self._progress = executor, records, progress
        self._approvals = approvals
        self._telemetry, self._clock, self._settings = telemetry, clock, settings
        self._parts = RunParts(
            executor=executor,
            lock=self.lock,
            records=records,
            progress=progress,
            journal=self.journal,
            bus=bus,
            telemetry=telemetry,
            clock=clock,
            paths=paths,
            settings=settings,
            release_slot=self.scheduler.release_slot,
        )
        self.metrics = GatewayMetrics(self.scheduler, self.lock, self.active)
        self._custom_checks = custom_checks
        self._registry = RunRegistry()
        self._refusing = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Runtime]:
        """The runtime with its tasks; leaving the block ends live runs as `gateway_shutdown`."""
        supervise = Supervisor(self._clock).run
        interval_ms = self._settings.engine_lock_reap_interval_ms
        async with anyio.create_task_group() as tasks, running_scheduler(self.scheduler):
            tasks.start_soon(supervise, "engine_lock", partial(self.lock.serve, interval_ms))
            tasks.start_soon(supervise, "scheduler", self.scheduler.keep_house)
            tasks.start_soon(supervise, "journal", self.journal.serve)
            try:
                yield self
            finally:
                with anyio.move_on_after(END_TIMEOUT_S, shield=True):
                    await self.refuse()
                    await self.end_all()
                tasks.cancel_scope.cancel()

    # --- the port ---

    async def available(self) -> bool:
        """True when the scheduler runs and the executor can be used."""
        return self.scheduler.running and self._executor.validate() is None

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        """See `EngineRuntime.submit_execution`."""
        return await self.submit(command)

    async def submit(
        self,
        command: ExecutionCommand,
        *,
        owner: str | None = None,
        on_complete: OnComplete | None = None,
    ) -> SubmitReceipt:
        """As `submit_execution`, for a peer or with a local listener to the end of the run."""
        request, digest = self._checked(command), command.digest()
        run_id = request.run_id
        async with self._registry.admission(run_id):
            entry = self._registry.get(run_id)
            if entry is not None:
                require_same(run_id, entry.digest, digest)
                over = entry.request is None
                return self._receipt(run_id, "already_completed" if over else "duplicate")
            self._require_open()
            if await self._known_before(run_id, digest):
                return self._receipt(run_id, "already_completed")
            self._require_open()
            self._enter(request, RunEntry(digest, owner, request, on_complete))
            await self.scheduler.submit(request)
        return self._receipt(run_id, "accepted")

    async def shares_bus(self) -> bool:
        """See `EngineRuntime`: callers in this process are on the runtime's own bus."""
        return True

    async def cancel_by_run_id(self, run_id: str, reason: str = "user_requested") -> None:
        """See `EngineRuntime.cancel_by_run_id`."""
        await self.cancel(run_id, reason)

    async def cancel(self, run_id: str, reason: str = "user_requested") -> bool:
        """As `cancel_by_run_id`; True when the run was queued or live."""
        entry = self._registry.live.get(run_id)
        if entry is None or entry.request is None:
            return False
        if entry.run is not None:
            entry.run.cancel(reason)
        elif self.scheduler.remove_queued(entry.request):
            await self._end_unlived(entry, Ending(False, reason, aborted=True))
        else:
            # On its way from one worker to the next: it ends as soon as it is to start.
            entry.cancel_reason = entry.cancel_reason or reason
        return True

    async def cancel_by_progress_msg(self, scope: str, message_id: str | int) -> bool:
        """Cancel the run that a progress message belongs to; False when there is none."""
        run_id = self._progress.get(scope, message_id)
        return run_id is not None and await self.cancel(run_id, "user_requested")

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        """See `EngineRuntime.steer`."""
        entry = self._registry.get(run_id)
        if entry is not None and (known := entry.steers.get(submission_run_id)) is not None:
            return known
        if entry is None or entry.run is None:
            return SteerOutcome(submission_run_id, mode, False, "run_not_active")
        return await entry.run.steer(submission_run_id, text, mode)

    async def get_run(self, run_id: str) -> RunSnapshot | None:
        """See `EngineRuntime.get_run`; raises `StoreError` when nobody can tell."""
        snapshot = self.journal.snapshot(run_id)
        if snapshot is not None:
            return snapshot
        record = await self._records.get(run_id)
        return None if record is None else past_snapshot(record, self.epoch)

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        """See `EngineRuntime.resolve_approval`; raises `StoreError` too."""
        return await self._approvals.resolve(approval_id, decision)

    def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        """See `EngineRuntime.subscribe`."""
        return stream(self.journal, run_id, after_seq, self.past)

    async def health(self) -> HealthReport:
        """Every check of the gateway."""
        builtin = gateway_checks(self.scheduler, self._executor, self.lock, self.active)
        checks = HealthChecks(self._clock, {**builtin, **self.extra_checks}, self._custom_checks)
        return HealthReport(
            app=APP,
            timestamp=timestamp(self._clock.now_ms()),
            checks=await checks.run(),
            node_id=self.node_id,
            stream_epoch=self.epoch,
            bus_id=self.bus.id,
        )

    # --- around the port ---

    async def past(self, run_id: str) -> tuple[StreamItem, ...]:
        """What a subscriber is told of a run that no journal holds; nothing when it is unknown."""
        record = await self._records.get(run_id)
        return () if record is None else (past_snapshot(record, self.epoch),)

    async def load_pending(self, approval_id: str) -> PendingApproval | None:
        """The question of that id, while it is open; raises `StoreError`."""
        return await self._approvals.load_pending(approval_id)

    def active(self) -> int:
        """How many runs are queued or live."""
        return len(self._registry.live)

    def owner(self, run_id: str) -> str | None:
        """The peer that submitted a run; None for callers in the process and for forgotten runs."""
        entry = self._registry.get(run_id)
        return None if entry is None else entry.owner

    def list_runs(
        self, states: Collection[RunState] = (), session_key: str | None = None
    ) -> list[RunSnapshot]:
        """The runs held in memory, of the given states (none: all) and session."""
        found = [self.journal.snapshot(run_id) for run_id in self.journal.run_ids()]
        return [
            snapshot
            for snapshot in found
            if snapshot is not None
            and (not states or snapshot.state in states)
            and (session_key is None or snapshot.session_key == session_key)
        ]

    def note_resumed(self, peer_id: str, run_id: str, missed: int, reset: bool) -> None:
        """A peer's subscription goes on; `reset`: with a snapshot for what is gone."""
        self._telemetry.emit(
            f"lemon.gateway.rpc.{'stream_reset' if reset else 'stream_resumed'}",
            {"count": 1, "missed": missed},
            {"run_id": run_id, "peer_node": peer_id},
        )

    async def refuse(self) -> None:
        """Take no new run from now on."""
        self._refusing = True

    async def end_all(self, reason: str = "gateway_shutdown") -> None:
        """End every queued and live run, and return when all have ended."""
        async with anyio.create_task_group() as tasks:
            for run_id in tuple(self._registry.live):
                tasks.start_soon(self.cancel, run_id, reason)
        await self._registry.wait_idle()

    # --- for the scheduler: `RunStarter` ---

    def start(self, request: ExecutionRequest, slot_id: int) -> Run:
        """Register the run of `request`."""
        entry = self._registry.live[request.run_id]
        if entry.run is not None:
            raise AlreadyStarted(request.run_id)
        run = self._new_run(entry, request, slot_id)
        if entry.cancel_reason is not None:
            run.cancel(entry.cancel_reason)
        entry.run = run
        return run

    async def end_unstarted(self, request: ExecutionRequest, error: ErrorValue) -> None:
        """End a run that could not be started."""
        entry = self._registry.live.get(request.run_id)
        if entry is not None:
            await self._end_unlived(entry, Ending(False, error))

    # --- inside ---

    def _checked(self, command: ExecutionCommand) -> ExecutionRequest:
        """The request of a command that may run here; raises `InvalidCommand`."""
        request = ExecutionRequest.from_command(command)
        context, run_id = request.execution_context, request.run_id
        if context.run_id != run_id:
            raise ContextNotForRun(run_id, f"it belongs to run {context.run_id}")
        node_id = context.provenance.node_id
        if node_id is not None and node_id != self.node_id:
            raise ContextNotForRun(run_id, f"it is for node {node_id}, this is {self.node_id}")
        if context.validity.expired(self._clock.now_ms()):
            raise ContextNotForRun(run_id, "it has expired")
        if not is_json(request.meta):
            raise MetaNotJson(run_id)
        return request

    def _require_open(self) -> None:
        if self._refusing or not self.scheduler.running:
            raise ExecutionRejected("it is shutting down")
        error = self._executor.validate()
        if error is not None:
            raise ExecutionRejected(f"{error.code}: {error}")

    async def _known_before(self, run_id: str, digest: bytes) -> bool:
        """True for a run that an earlier entry or process began or ended."""
        try:
            record = await self._records.get(run_id)
        except StoreError as exc:
            raise ExecutionRejected(f"the run store does not answer: {exc}") from exc
        if record is None:
            return False
        require_same(run_id, record.digest, digest)
        return True

    def _enter(self, request: ExecutionRequest, entry: RunEntry) -> None:
        self._registry.enter(request.run_id, entry)
        phase = RunPhase.DISPATCHED_TO_GATEWAY.value
        self.journal.open(request.run_id, request.session_key, state="queued", phase=phase)

    async def _end_unlived(self, entry: RunEntry, ending: Ending) -> None:
        if entry.request is not None and entry.run is None:
            entry.run = self._new_run(entry, entry.request, None)
            await entry.run.abandon(ending)

    def _new_run(self, entry: RunEntry, request: ExecutionRequest, slot_id: int | None) -> Run:
        return Run(
            request,
            entry.digest,
            self._parts,
            slot_id=slot_id,
            steers=entry.steers,
            on_complete=entry.on_complete,
            unregister=partial(self._registry.leave, request.run_id),
        )

    def _forget(self, run_id: str) -> None:
        """The journal let the run go."""
        self._registry.forget(run_id)
        self._records.drop(run_id)

    def _receipt(self, run_id: str, status: ReceiptStatus) -> SubmitReceipt:
        return SubmitReceipt(run_id, status, self.node_id, self.epoch)

    def _over_age(self, lease: LockLease, age_ms: int, waiters: int) -> None:
        log.warning("engine_lock.over_age", run_id=lease.run_id, age_ms=age_ms, waiters=waiters)
        self._telemetry.emit(
            "lemon.gateway.engine_lock.over_age_live_owner",
            {"count": 1, "age_ms": age_ms, "waiters": waiters},
            {"key_kind": lease.key[0], "run_id": lease.run_id},
        )


def past_snapshot(record: RunRecord, epoch: str) -> RunSnapshot:
    """A run that is only in the store: over, or lost with the process that began it."""
    summary = record.summary or {}
    completion = coerce("engine_completed", summary.get("completed"))
    if not isinstance(completion, Completion):
        completion = Completion(
            ok=False, error="run_lost", run_id=record.run_id, session_key=record.session_key
        )
    duration_ms, steers = summary.get("duration_ms"), summary.get("applied_steers")
    outcome = infer_outcome({"ok": completion.ok, "error": completion.error})
    aborted = outcome is RunOutcome.ABORTED
    phase = RunPhase.COMPLETED if completion.ok else RunPhase.FAILED
    return RunSnapshot(
        run_id=record.run_id,
        session_key=record.session_key,
        state="terminal",
        stream_epoch=epoch,
        phase=(RunPhase.ABORTED if aborted else phase).value,
        accumulated_text=completion.answer or "",
        resume=completion.resume,
        applied_steers=tuple(str(steer) for steer in steers) if isinstance(steers, list) else (),
        terminal=completion,
        duration_ms=duration_ms if isinstance(duration_ms, int) else None,
        started_at_ms=record.started_at_ms,
    )
