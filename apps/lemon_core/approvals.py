"""Asking a person before something is done.

A question is stored, published on `exec_approvals`, and waits. Whoever takes its record out of the
store settles it: a person's answer, the end of its time, the end of its requester, or the next
boot. The store hands the record to one of them, so a question has one end, and everybody hears of
that end through the bus, the requester included. It subscribes before the record exists, so no
answer can be too early for it.

An approval never overrides a policy: callers ask the policy first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeGuard

import anyio
from anyio.abc import TaskGroup

from lemon_core import ids
from lemon_core.approval_types import (
    DECISIONS,
    ApprovalRequest,
    ApprovalsClosed,
    ApprovalScope,
    ApprovalTimeout,
    Approved,
    Decision,
    Denied,
    GrantRule,
    InvalidDecision,
    action_hash,
)
from lemon_core.bus import Bus, Subscription
from lemon_core.clock import Clock
from lemon_core.events import ApprovalRequested, ApprovalResolved, PendingApproval
from lemon_core.introspection import Introspection
from lemon_core.logs import get_logger
from lemon_core.runs import DEFAULT_AGENT
from lemon_core.store.approvals import (
    ANY_ACTION,
    GRANT_TABLES,
    ExecApprovalStore,
    GrantScope,
    OpenQuestion,
)
from lemon_core.store.errors import StoreError
from lemon_core.telemetry import Telemetry

__all__ = [
    "DECISIONS",
    "TOPIC",
    "ApprovalRequest",
    "ApprovalScope",
    "ApprovalTimeout",
    "ApprovalsClosed",
    "Approved",
    "Decision",
    "Denied",
    "ExecApprovals",
    "GrantRule",
    "InvalidDecision",
    "action_hash",
]

log = get_logger("lemon_core.approvals")

TOPIC: Final = "exec_approvals"
MAX_TYPE_CHARS: Final = 64

# What each approval is called for the requester, and where it is kept.
_SCOPES: Final[Mapping[str, ApprovalScope]] = {
    "approve_once": "once",
    "approve_session": "session",
    "approve_agent": "agent",
    "approve_global": "global",
}
_KEPT: Final[Mapping[Decision, GrantScope]] = {
    "approve_session": "session",
    "approve_agent": "agent",
    "approve_global": "global",
}


class ExecApprovals:
    """The approvals of one runtime.

    `node_id` is this runtime's; `is_draining` says whether it is going down: a question whose
    requester is cancelled then stays in the store, for the next boot to settle.
    """

    def __init__(
        self,
        store: ExecApprovalStore,
        bus: Bus,
        telemetry: Telemetry,
        introspection: Introspection,
        clock: Clock,
        *,
        node_id: str,
        is_draining: Callable[[], bool],
    ) -> None:
        self._store, self._bus, self._clock = store, bus, clock
        self._telemetry, self._introspection = telemetry, introspection
        self._node_id, self._is_draining = node_id, is_draining

    # -- asking ------------------------------------------------------------------------------

    async def request(self, request: ApprovalRequest) -> Approved | Denied:
        """The answer of a stored grant, at once, or of a person, who may take for ever.

        Raises `ApprovalTimeout`, `StoreError`, `ApprovalsClosed`, and as `action_hash`; whatever is
        raised, nothing was approved.
        """
        granted = await self.granted(request)
        if granted is not None:
            return granted
        question = self._question(request)
        with self._bus.subscribe(TOPIC) as answers:
            try:
                # Cancelled half-way, the write would leave a record that nobody settles.
                with anyio.CancelScope(shield=True):
                    await self._store.put_question(question)
                self._announce(question)
                resolved = await self._wait(answers, question.pending.id, request.expires_in_ms)
            except BaseException:
                if not self._is_draining():
                    await self._settle(question.pending.id, "its requester ended")
                raise
        if resolved.decision == "timeout":
            raise ApprovalTimeout(question.pending.id, resolved.reason)
        scope = _SCOPES.get(resolved.decision)
        return Denied() if scope is None else Approved(scope)

    async def granted(self, request: ApprovalRequest) -> Approved | None:
        """The answer of a stored grant, asking nobody. Raises `StoreError`, and as `action_hash`.

        Global grants come first, then the node's, the agent's and the session's; within each the
        exact action comes before `any`.
        """
        exact = action_hash(request.action)
        hashes = (exact, ANY_ACTION) if request.grants.wildcard else (exact,)
        for scope in GRANT_TABLES:
            owner = request.owner(scope)
            if owner is None or scope not in request.grants.scopes:
                continue
            for hashed in hashes:
                if await self._store.load_grant(scope, owner, request.tool, hashed):
                    return Approved(scope)
        return None

    def _question(self, request: ApprovalRequest) -> OpenQuestion:
        now, expires = self._clock.now_ms(), request.expires_in_ms
        pending = PendingApproval(
            id=ids.approval_id(),
            tool=request.tool,
            run_id=request.run_id,
            session_id=request.session_id,
            session_key=request.session_key,
            agent_id=request.agent,
            action=dict(request.action),
            rationale=request.rationale,
            requested_at_ms=now,
            expires_at_ms=None if expires is None else now + expires,
            decisions=[d for d in DECISIONS if d in request.grants.decisions],
        )
        return OpenQuestion(pending, action_hash(request.action), self._node_id)

    async def _wait(
        self, answers: Subscription, approval_id: str, expires_in_ms: int | None
    ) -> ApprovalResolved:
        """The end of the question, whoever brought it about."""
        if expires_in_ms is None:
            return await _end_of(approval_id, answers)
        # What holds when even the end of the time cannot be stored: nobody waits for ever.
        resolved = ApprovalResolved(approval_id=approval_id, decision="timeout")
        closed: ApprovalsClosed | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expire, tasks, approval_id, expires_in_ms)
            try:
                resolved = await _end_of(approval_id, answers)
            except ApprovalsClosed as exc:  # raised in here, it would come out as a group
                closed = exc
            tasks.cancel_scope.cancel()
        if closed is not None:
            raise closed
        return resolved

    async def _expire(self, waiting: TaskGroup, approval_id: str, expires_in_ms: int) -> None:
        await self._clock.sleep(expires_in_ms)
        if not await self._settle(approval_id, "its time is over"):
            waiting.cancel_scope.cancel()

    # -- answering ---------------------------------------------------------------------------

    async def resolve(self, approval_id: str, decision: str) -> bool:
        """Answer a question: the first answer counts; False when it is not open (any more).

        A grant for a session that the question does not name is given once and not stored. Raises
        `InvalidDecision`, after which the question is still open, and `StoreError`.
        """
        if not _is_decision(decision):
            raise InvalidDecision(approval_id, decision, DECISIONS)
        question = await self._store.load_question(approval_id)
        if question is None:
            return False
        taken = question.pending.decisions
        if taken is not None and decision not in taken:
            raise InvalidDecision(approval_id, decision, tuple(taken))
        # Cancelled after the record is taken, the requester would never hear of it.
        with anyio.CancelScope(shield=True):
            question = await self._store.take_question(approval_id)
            if question is None:
                return False
            decision = _kept_once(decision, question.pending)
            try:
                await self._keep(decision, question)
            finally:
                self._publish_end(question, decision, None)
        return True

    async def pending_approvals(self) -> list[PendingApproval]:
        """The open questions, the oldest first. Raises `StoreError`."""
        return [question.pending for question in await self._store.load_questions()]

    async def load_pending(self, approval_id: str) -> PendingApproval | None:
        """The question, while it is open. Raises `StoreError`."""
        question = await self._store.load_question(approval_id)
        return None if question is None else question.pending

    async def _keep(self, decision: Decision, question: OpenQuestion) -> None:
        scope, pending = _KEPT.get(decision), question.pending
        if scope is None:
            return
        owners = {"session": pending.session_key, "agent": pending.agent_id or DEFAULT_AGENT}
        owner = owners.get(scope) or ""
        now = self._clock.now_ms()
        await self._store.put_grant(scope, owner, pending.tool, question.action_hash, now)

    # -- ending without an answer ------------------------------------------------------------

    async def settle_dead(self, lives_on: Callable[[str, str], bool]) -> int:
        """Settle what earlier runtimes left behind; how many questions that were.

        Called at boot, before there is new work: no run of this node lives then. `lives_on(node_id,
        run_id)` says whether a run still lives on another node; its question stays open. Raises
        `StoreError`.
        """
        settled = 0
        for question in await self._store.load_questions():
            node_id, run_id = question.node_id, question.pending.run_id
            if node_id != self._node_id and run_id is not None and lives_on(node_id, run_id):
                continue
            if await self._store.take_question(question.pending.id) is not None:
                self._publish_end(question, "timeout", "expired by restart")
                settled += 1
        return settled

    async def settle_run(self, run_id: str, reason: str) -> int:
        """Settle the open questions of a run that is over; how many those were.

        For a run whose end was not made by whoever asks: nobody waits for the answers any more.
        Raises `StoreError`.
        """
        settled = 0
        for question in await self._store.load_questions():
            pending = question.pending
            if pending.run_id == run_id and await self._store.take_question(pending.id) is not None:
                self._publish_end(question, "timeout", reason)
                settled += 1
        return settled

    async def _settle(self, approval_id: str, reason: str) -> bool:
        """End the question without an answer, unless it has ended; False: the store failed."""
        # Shielded: this is the clean-up of a requester that was cancelled.
        with anyio.CancelScope(shield=True):
            try:
                question = await self._store.take_question(approval_id)
            except StoreError as exc:
                log.warning("approvals.not_settled", approval_id=approval_id, error=str(exc))
                return False
        if question is not None:
            self._publish_end(question, "timeout", reason)
        return True

    # -- telling -----------------------------------------------------------------------------

    def _announce(self, question: OpenQuestion) -> None:
        pending = question.pending
        told = {"approval_id": pending.id, "tool": pending.tool}
        self._telemetry.emit("lemon.approvals.requested", {"count": 1}, told)
        self._record("approval_requested", question, expires=pending.expires_at_ms is not None)
        payload = ApprovalRequested(approval_id=pending.id, pending=pending)
        self._bus.publish_event(TOPIC, "approval_requested", payload, _meta(question))

    def _publish_end(self, question: OpenQuestion, decision: str, reason: str | None) -> None:
        pending = question.pending
        told = {"approval_id": pending.id, "tool": pending.tool, "decision": decision}
        self._telemetry.emit("lemon.approvals.resolved", {"count": 1}, told)
        event_type = "approval_timed_out" if decision == "timeout" else "approval_resolved"
        scope = _SCOPES.get(decision)
        self._record(
            event_type, question, decision=decision, scope=scope, approved=scope is not None
        )
        payload = ApprovalResolved(
            approval_id=pending.id, decision=decision, pending=pending, reason=reason
        )
        self._bus.publish_event(TOPIC, "approval_resolved", payload, _meta(question))

    def _record(self, event_type: str, question: OpenQuestion, **facts: object) -> None:
        """Records outlive the question and are shown to many: no part of the action is in them."""
        pending = question.pending
        facts |= {
            "approval_id": pending.id,
            "tool": pending.tool,
            "action_type": _action_type(pending.action or {}),
            "action_hash": question.action_hash,
        }
        self._introspection.record(
            event_type,
            facts,
            run_id=pending.run_id,
            session_key=pending.session_key,
            agent_id=pending.agent_id,
        )


async def _end_of(approval_id: str, answers: Subscription) -> ApprovalResolved:
    async for event in answers:
        payload = event.payload
        if isinstance(payload, ApprovalResolved) and payload.approval_id == approval_id:
            return payload
    raise ApprovalsClosed(f"approval {approval_id} is open, and the runtime has stopped")


def _is_decision(word: str) -> TypeGuard[Decision]:
    return word in DECISIONS


def _kept_once(decision: Decision, pending: PendingApproval) -> Decision:
    if decision == "approve_session" and not pending.session_key:
        return "approve_once"
    return decision


def _action_type(action: Mapping[str, object]) -> str | None:
    """The word by which an action names its kind; anything longer would be part of its content."""
    named = action.get("type")
    is_word = isinstance(named, str) and named.isidentifier() and len(named) <= MAX_TYPE_CHARS
    return str(named) if is_word else None


def _meta(question: OpenQuestion) -> dict[str, object]:
    pending = question.pending
    known = {
        "run_id": pending.run_id,
        "session_key": pending.session_key,
        "agent_id": pending.agent_id,
        "node_id": question.node_id,
    }
    return {name: value for name, value in known.items() if value is not None}
