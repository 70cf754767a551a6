"""A session's questions as whoever watches its run sees them: as actions, never as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coding_agent.tool_titles import shortened, title_of
from lemon_core.events import (
    Action,
    ApprovalRequested,
    ApprovalResolved,
    Event,
    PendingApproval,
)
from lemon_gateway.requests import EngineAction, SinkMessage

_OUTCOMES: Final[Mapping[str, str]] = {
    "approve_once": "approved once",
    "approve_session": "approved for session",
    "approve_agent": "approved for agent",
    "approve_global": "approved globally",
    "deny": "denied",
    "timeout": "timed out",
}


class ApprovalActions:
    """The actions of one run; events about other sessions' questions give none."""

    def __init__(self, run_ref: str, session_id: str, session_key: str) -> None:
        self._run_ref = run_ref
        self._session_id, self._session_key = session_id, session_key
        self._open: dict[str, Action] = {}

    def translate(self, events: Iterable[Event]) -> list[SinkMessage]:
        """The messages for these events of the topic `exec_approvals`."""
        messages: list[SinkMessage] = []
        for event in events:
            match event.payload:
                case ApprovalRequested(pending=pending) if self._is_own(pending):
                    action = self._open[pending.id] = _action(pending)
                    messages.append(
                        EngineAction(self._run_ref, action, "started", message="awaiting approval")
                    )
                case ApprovalResolved(approval_id=approval_id, decision=decision):
                    known = self._open.pop(approval_id, None)
                    if known is not None:
                        messages.append(self._completed(known, decision))
                case _:
                    pass
        return messages

    def _is_own(self, pending: PendingApproval) -> bool:
        return pending.session_id == self._session_id or pending.session_key == self._session_key

    def _completed(self, action: Action, decision: str) -> EngineAction:
        ok = decision not in ("deny", "timeout")
        told = _OUTCOMES.get(decision, decision)
        return EngineAction(self._run_ref, action, "completed", ok, message=told)


def _action(pending: PendingApproval) -> Action:
    args = pending.action or {}
    detail: dict[str, object] = {"name": pending.tool, "args": shortened(args)}
    return Action(
        id=f"approval:{pending.id}",
        kind="approval",
        title=title_of(pending.tool, args),
        detail=detail,
    )
