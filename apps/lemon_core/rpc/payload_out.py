"""Payloads of run events into their messages.

Each `_fill_*` answers False for a payload that is not the type's model, or names another run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core import events
from lemon_core.resume import ResumeToken
from lemon_core.rpc.fields import resume_to_message
from lemon_core.rpc.wire_json import dump_json, dump_map


def _fill_delta(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.Delta) or payload.run_id != run_id:
        return False
    delta = message.delta
    delta.seq = payload.seq
    delta.text = payload.text
    if payload.ts_ms is not None:
        delta.ts_ms = payload.ts_ms
    if payload.meta is not None:
        delta.meta_json = dump_map(payload.meta, "delta.meta_json")
    return True


def _fill_run_started(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.RunStarted) or payload.run_id != run_id:
        return False
    message.run_started.CopyFrom(
        pb.RunStarted(
            session_key=payload.session_key,
            engine=payload.engine,
            model=payload.model,
            provider=payload.provider,
            thinking_level=payload.thinking_level,
        )
    )
    return True


def _fill_engine_started(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.EngineStarted):
        return False
    message.engine_started.CopyFrom(
        pb.EngineStarted(
            engine=payload.engine,
            resume=_resume(payload.resume),
            title=payload.title,
            meta_json=_map(payload.meta, "engine_started.meta_json"),
            run_id=payload.run_id,
            session_key=payload.session_key,
        )
    )
    return True


def _fill_engine_action(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.EngineAction):
        return False
    action = payload.action
    message.engine_action.CopyFrom(
        pb.EngineAction(
            engine=payload.engine,
            action=pb.Action(
                id=action.id,
                kind=action.kind,
                title=action.title,
                detail_json=_map(action.detail, "engine_action.action.detail_json"),
            ),
            phase=payload.phase,
            ok=payload.ok,
            message=payload.message,
            level=payload.level,
        )
    )
    return True


def completion_to_message(payload: events.Completion) -> pb.Completion:
    """The message of a completion; raises `InvalidMessage` when a map in it is not JSON."""
    error = payload.error
    return pb.Completion(
        engine=payload.engine,
        ok=payload.ok,
        answer=payload.answer,
        error_json=None if error is None else dump_json(error, "completion.error_json"),
        resume=_resume(payload.resume),
        usage_json=_map(payload.usage, "completion.usage_json"),
        meta_json=_map(payload.meta, "completion.meta_json"),
        run_id=payload.run_id,
        session_key=payload.session_key,
    )


def _fill_engine_completed(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.Completion):
        return False
    message.engine_completed.CopyFrom(completion_to_message(payload))
    return True


def _fill_run_completed(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.RunCompleted):
        return False
    completed = message.run_completed
    completed.completed.CopyFrom(completion_to_message(payload.completed))
    if payload.duration_ms is not None:
        completed.duration_ms = payload.duration_ms
    return True


def _fill_run_phase_changed(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.RunPhaseChanged) or payload.run_id != run_id:
        return False
    message.run_phase_changed.CopyFrom(
        pb.RunPhaseChanged(
            phase=payload.phase,
            source=payload.source,
            session_key=payload.session_key,
            conversation_key=payload.conversation_key,
            previous_phase=payload.previous_phase,
            at_ms=payload.at,
        )
    )
    return True


def _fill_run_absorbed(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.RunAbsorbed) or payload.run_id != run_id:
        return False
    message.run_absorbed.absorbed_by = payload.absorbed_by
    message.run_absorbed.mode = payload.mode
    message.run_absorbed.SetInParent()
    return True


def _fill_run_failed(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.RunFailed) or payload.run_id != run_id:
        return False
    message.run_failed.CopyFrom(
        pb.RunFailed(reason=payload.reason, session_key=payload.session_key)
    )
    return True


def pending_to_message(payload: events.PendingApproval) -> pb.PendingApproval:
    """The message of an open question; raises `NotJson` when its action is not JSON."""
    decisions = payload.decisions
    return pb.PendingApproval(
        id=payload.id,
        tool=payload.tool,
        run_id=payload.run_id,
        session_id=payload.session_id,
        session_key=payload.session_key,
        agent_id=payload.agent_id,
        action_json=_map(payload.action, "pending.action_json"),
        rationale=payload.rationale,
        requested_at_ms=payload.requested_at_ms,
        expires_at_ms=payload.expires_at_ms,
        decisions=None if decisions is None else pb.DecisionList(values=decisions),
    )


def _fill_approval_requested(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.ApprovalRequested):
        return False
    message.approval_requested.CopyFrom(
        pb.ApprovalRequested(
            approval_id=payload.approval_id, pending=pending_to_message(payload.pending)
        )
    )
    return True


def _fill_approval_resolved(message: pb.RunEvent, run_id: str, payload: object) -> bool:
    if not isinstance(payload, events.ApprovalResolved):
        return False
    pending = payload.pending
    message.approval_resolved.CopyFrom(
        pb.ApprovalResolved(
            approval_id=payload.approval_id,
            decision=payload.decision,
            pending=None if pending is None else pending_to_message(pending),
            reason=payload.reason,
        )
    )
    return True


FILLERS: Final[Mapping[str, Callable[[pb.RunEvent, str, object], bool]]] = {
    "delta": _fill_delta,
    "run_started": _fill_run_started,
    "engine_started": _fill_engine_started,
    "engine_action": _fill_engine_action,
    "engine_completed": _fill_engine_completed,
    "run_completed": _fill_run_completed,
    "run_phase_changed": _fill_run_phase_changed,
    "run_absorbed": _fill_run_absorbed,
    "run_failed": _fill_run_failed,
    "approval_requested": _fill_approval_requested,
    "approval_resolved": _fill_approval_resolved,
}


def _resume(token: ResumeToken | None) -> pb.ResumeToken | None:
    return None if token is None else resume_to_message(token)


def _map(value: Mapping[str, object] | None, field: str) -> bytes | None:
    return None if value is None else dump_map(value, field)
