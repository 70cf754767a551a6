"""The two ports that join router, gateway and producers, and what travels over them.

`EngineRuntime` (router to gateway) and `RouterPort` (producers to router) each have an in-process
form, written by their app, and a gRPC form in `lemon_core.rpc`. Callers cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import anyio

from lemon_core.capabilities import Capabilities
from lemon_core.errors import LemonError
from lemon_core.events import Completion, Event, PendingApproval
from lemon_core.resume import ResumeToken
from lemon_core.runs import ExecutionCommand, RunRequest

if TYPE_CHECKING:
    # Its models take milliseconds to make, and a process without channels has no use for them.
    from lemon_core.messages import InboundMessage

ROUTER = "router"
ENGINE_RUNTIME = "engine_runtime"
MODEL_INFO = "model_info"

SubmitStatus = Literal["accepted", "rejected", "unavailable", "outcome_unknown"]
ReceiptStatus = Literal["accepted", "duplicate", "already_completed"]
RunState = Literal["queued", "waiting_lock", "starting", "running", "terminal"]
SteerMode = Literal["steer", "steer_backlog", "redirect"]
CallStatus = Literal["ok", "unavailable", "error"]
KeepAlive = Literal["continue", "cancel"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The router's answer to a submission.

    `accepted`: it ends as something, exactly once. `rejected`: refused, `reason` says why.
    `unavailable`: certainly not taken, safe to retry. `outcome_unknown`: may have been taken; ask
    `admission(run_id)` before anything is sent again. `duplicate`: the run id was known,
    nothing runs twice.
    """

    status: SubmitStatus
    run_id: str | None = None
    reason: str | None = None
    duplicate: bool = False
    detail: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class SubmitReceipt:
    """The gateway took a command (now or earlier); the run itself may still be queued."""

    run_id: str
    status: ReceiptStatus
    node_id: str
    stream_epoch: str


@dataclass(frozen=True, slots=True)
class SteerOutcome:
    """Whether a live run took more input; `reason` only when it did not."""

    submission_run_id: str
    mode: SteerMode
    accepted: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ActionState:
    """The last known state of one action of a run."""

    id: str
    kind: str
    title: str
    phase: str
    ok: bool | None = None
    detail: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run as a whole: what a subscriber needs when single events are no longer there.

    `last_event_seq` is the place to go on from, within `stream_epoch`. `terminal` is set exactly
    when `state` is `terminal`.
    """

    run_id: str
    session_key: str
    state: RunState
    stream_epoch: str
    phase: str = ""
    last_event_seq: int = 0
    last_delta_seq: int = 0
    accumulated_text: str = ""
    resume: ResumeToken | None = None
    actions: tuple[ActionState, ...] = ()
    applied_steers: tuple[str, ...] = ()
    terminal: Completion | None = None
    duration_ms: int | None = None
    started_at_ms: int | None = None
    open_approvals: tuple[PendingApproval, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One named check of a health report."""

    name: str
    ok: bool
    duration_ms: float = 0.0
    detail: Mapping[str, object] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Liveness of an app. `bus_id` lets a gRPC peer find out that it shares this process's bus."""

    app: str
    timestamp: str
    checks: tuple[HealthCheck, ...] = ()
    node_id: str = ""
    stream_epoch: str = ""
    bus_id: str = ""

    @property
    def ok(self) -> bool:
        """True when every check is."""
        return all(check.ok for check in self.checks)


class ExecutionRejected(LemonError):
    """The runtime cannot take work now; the same command may be sent again later."""

    code = "execution_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the gateway takes no work now: {reason}")
        self.reason = reason


class RunIdConflict(LemonError):
    """The run id is taken by a different command; no retry can make it right."""

    code = "run_id_conflict"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run id {run_id} belongs to a different command")
        self.run_id = run_id


class RunNotFound(LemonError):
    """Nobody here knows the run."""

    code = "not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id} is known here")
        self.run_id = run_id


class StreamLost(LemonError):
    """A subscription ended before its run did; subscribe again from the last sequence number."""

    code = "stream_lost"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"the event stream of run {run_id} ended early: {reason}")
        self.run_id, self.reason = run_id, reason


StreamItem = Event | RunSnapshot
"""What a subscription yields: the run's events in order (`meta["event_seq"]`), or one snapshot that
stands for everything up to its `last_event_seq`."""


class EngineRuntime(Protocol):
    """Router to gateway."""

    async def available(self) -> bool:
        """Cheap liveness; says nothing about free slots. Never raises."""

    async def health(self) -> HealthReport:
        """All checks, the node's identity and its bus."""

    async def shares_bus(self) -> bool:
        """True when the runs publish on the caller's own bus, which then needs no stream of them.

        Raises when that cannot be found out now.
        """

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        """Queue `command`; idempotent by run id.

        Raises `ExecutionRejected` (retry later) and the permanent `InvalidCommand` and
        `RunIdConflict`. Nothing is queued when it raises.
        """

    async def cancel_by_run_id(self, run_id: str, reason: str = "user_requested") -> None:
        """End the run if it is queued or live. Total, idempotent, never raises."""

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        """Give a live run more input; idempotent by `submission_run_id`."""

    async def get_run(self, run_id: str) -> RunSnapshot | None:
        """The run as it is now, queued ones included; None when it is unknown."""

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        """Answer a question that a run of this runtime asked; the first answer counts.

        False when the question is not open (any more). Raises `InvalidDecision`, after which it
        still is, and what says that the outcome is not known.
        """

    def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        """The run's events after `after_seq`; ends when the run is over.

        Raises `RunNotFound` for an unknown run and `StreamLost` when it cannot go on.
        Close it with `contextlib.aclosing`.
        """


class RouterPort(Protocol):
    """Producers to router. Implementations answer; what they cannot answer they raise."""

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        """Take a message. Caller-fixed run ids are durable idempotency keys."""

    async def handle_inbound(self, message: InboundMessage) -> SubmitResult:
        """Take a channel's message: its session, agent and queue mode follow from where it was
        written."""

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> None:
        """Drop what the session has queued and cancel its active run."""

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        """Drop or cancel one run; unknown ids do nothing."""

    async def keep_run_alive(self, run_id: str, decision: KeepAlive) -> None:
        """Answer a watchdog's question about a silent run."""

    async def session_busy(self, session_key: str) -> bool:
        """True while the session has an active run."""

    async def active_run(self, session_key: str) -> str | None:
        """The session's active run."""

    async def list_active_sessions(self) -> list[dict[str, str]]:
        """`{session_key, run_id}` of every active run."""

    async def counts(self) -> dict[str, int]:
        """`active`, `queued` and `completed_today`."""

    async def admission(self, run_id: str) -> str | None:
        """The admission state of a run, to reconcile an unknown outcome."""


@dataclass(frozen=True, slots=True)
class RouterBridge:
    """The router as producers see it: every call answers softly, none raises.

    Cancellation of the caller still propagates. With no router registered the answers are
    `unavailable`, False, None and empty.
    """

    capabilities: Capabilities
    timeout_ms: int = field(default=5_000)

    def _router(self) -> RouterPort | None:
        # The registry is untyped; only the router and its gRPC form register under this key.
        return self.capabilities.get(ROUTER)  # type: ignore[return-value]

    async def submit_run(
        self, request: RunRequest, *, timeout_ms: int | None = None
    ) -> SubmitResult:
        """Submit `request`; a timeout or a lost call is `outcome_unknown`, never `unavailable`."""
        return await self._submit(
            lambda router: router.submit_run(request), request.run_id, timeout_ms
        )

    async def handle_inbound(
        self, message: InboundMessage, *, timeout_ms: int | None = None
    ) -> SubmitResult:
        """Hand over a channel's message; the answers are those of `submit_run`.

        The router fixes the run id, so an unknown outcome has none.
        """
        return await self._submit(lambda router: router.handle_inbound(message), None, timeout_ms)

    async def abort_session(self, session_key: str, reason: str = "user_requested") -> CallStatus:
        """Abort everything of a session."""
        return await self._tell(lambda router: router.abort_session(session_key, reason))

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> CallStatus:
        """Abort one run."""
        return await self._tell(lambda router: router.abort_run(run_id, reason))

    async def keep_run_alive(self, run_id: str, decision: KeepAlive) -> CallStatus:
        """Answer the watchdog's question about a silent run."""
        return await self._tell(lambda router: router.keep_run_alive(run_id, decision))

    async def session_busy(self, session_key: str) -> bool:
        """True while the session has an active run; False as well when nobody can tell."""
        return await self._ask(lambda router: router.session_busy(session_key), False)

    async def active_run(self, session_key: str) -> str | None:
        """The session's active run, or None when there is none or nobody can tell."""
        return await self._ask(lambda router: router.active_run(session_key), None)

    async def list_active_sessions(self) -> list[dict[str, str]]:
        """`{session_key, run_id}` of every active run; empty when nobody can tell."""
        return await self._ask(lambda router: router.list_active_sessions(), [])

    async def counts(self) -> dict[str, int]:
        """`active`, `queued` and `completed_today`; empty when nobody can tell."""
        return await self._ask(lambda router: router.counts(), {})

    async def admission(self, run_id: str) -> str | None:
        """What became of a submission, to reconcile an unknown outcome; None when nobody can
        tell."""
        return await self._ask(lambda router: router.admission(run_id), None)

    async def _submit(
        self,
        call: Callable[[RouterPort], Awaitable[SubmitResult]],
        run_id: str | None,
        timeout_ms: int | None,
    ) -> SubmitResult:
        router = self._router()
        if router is None:
            return SubmitResult("unavailable", run_id, "no router is running")
        try:
            with anyio.fail_after((timeout_ms or self.timeout_ms) / 1000):
                return await call(router)
        except TimeoutError:
            return SubmitResult("outcome_unknown", run_id, "the router did not answer")
        except LemonError as exc:
            return SubmitResult("rejected", run_id, f"{exc.code}: {exc}"[:300])
        except Exception as exc:  # a router that breaks must not take its producer along
            return SubmitResult("rejected", run_id, f"{type(exc).__name__}: {exc}"[:300])

    async def _tell(self, call: Callable[[RouterPort], Awaitable[None]]) -> CallStatus:
        router = self._router()
        if router is None:
            return "unavailable"
        try:
            with anyio.fail_after(self.timeout_ms / 1000):
                await call(router)
        except Exception:  # the caller only needs to know that it did not work
            return "error"
        return "ok"

    async def _ask(self, call: Callable[[RouterPort], Awaitable[T]], unknown: T) -> T:
        router = self._router()
        if router is None:
            return unknown
        try:
            with anyio.fail_after(self.timeout_ms / 1000):
                return await call(router)
        except Exception:  # a query degrades to "do not know"
            return unknown


class ModelInfo(Protocol):
    """Which model answers when nobody names one; registered by the agent product."""

    async def describe_default(self) -> str:
        """One line for a person, such as `openai:gpt-5` and why. Never raises."""
