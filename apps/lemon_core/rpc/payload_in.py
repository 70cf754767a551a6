"""Payloads of run events out of their messages.

A reader raises pydantic's `ValidationError` for what the model refuses and `InvalidMessage` for bad
JSON; `run_events` names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from google.protobuf.message import Message

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core import events
from lemon_core.payload import Payload
from lemon_core.resume import ResumeToken
from lemon_core.rpc.fields import resume_from_message
from lemon_core.rpc.wire_json import InvalidMessage, load_json, load_map


def optional(message: Message, *names: str) -> dict[str, object]:
    """The named fields of `message` that are set."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def optional_map(message: Message, name: str, field: str) -> dict[str, object] | None:
    """The map in an optional JSON field; raises `InvalidMessage`."""
    return load_map(getattr(message, name), field) if message.HasField(name) else None


def _resume(message: pb.EngineStarted | pb.Completion, field: str) -> ResumeToken | None:
    return resume_from_message(message.resume, field) if message.HasField("resume") else None


def _delta(message: pb.RunEvent) -> events.Delta:
    delta = message.delta
    return events.Delta(
        run_id=message.run_id,
        seq=delta.seq,
        text=delta.text,
        ts_ms=delta.ts_ms if delta.HasField("ts_ms") else None,
        meta=load_map(delta.meta_json, "delta.meta_json") if delta.HasField("meta_json") else None,
    )


def _run_started(message: pb.RunEvent) -> events.RunStarted:
    started = message.run_started
    return events.RunStarted.model_validate(
        {
            "run_id": message.run_id,
            "engine": started.engine,
            **optional(started, "session_key", "model", "provider", "thinking_level"),
        }
    )


def _engine_started(message: pb.RunEvent) -> events.EngineStarted:
    started = message.engine_started
    return events.EngineStarted.model_validate(
        {
            "engine": started.engine,
            "resume": _resume(started, "engine_started.resume"),
            "meta": optional_map(started, "meta_json", "engine_started.meta_json"),
            **optional(started, "title", "run_id", "session_key"),
        }
    )


def _engine_action(message: pb.RunEvent) -> events.EngineAction:
    progress = message.engine_action
    action = progress.action
    return events.EngineAction.model_validate(
        {
            "engine": progress.engine,
            "action": {
                "id": action.id,
                "kind": action.kind,
                "title": action.title,
                "detail": optional_map(action, "detail_json", "engine_action.action.detail_json"),
            },
            "phase": progress.phase,
            **optional(progress, "ok", "message", "level"),
        }
    )


def completion_from_message(message: pb.Completion) -> events.Completion:
    """The completion in `message`; raises `InvalidMessage` and pydantic's `ValidationError`."""
    error: object = None
    if message.HasField("error_json"):
        error = load_json(message.error_json, "completion.error_json")
        if not isinstance(error, str | dict | None):
            raise InvalidMessage("completion.error_json", "expected text or a JSON object")
    return events.Completion.model_validate(
        {
            "engine": message.engine,
            "ok": message.ok,
            "error": error,
            "resume": _resume(message, "completion.resume"),
            "usage": optional_map(message, "usage_json", "completion.usage_json"),
            "meta": optional_map(message, "meta_json", "completion.meta_json"),
            **optional(message, "answer", "run_id", "session_key"),
        }
    )


def run_completed_from_message(message: pb.RunCompleted) -> events.RunCompleted:
    """The payload in `message`; raises as `completion_from_message`."""
    if not message.HasField("completed"):
        raise InvalidMessage("run_completed.completed", "is required")
    return events.RunCompleted(
        completed=completion_from_message(message.completed),
        duration_ms=message.duration_ms if message.HasField("duration_ms") else None,
    )


def _run_phase_changed(message: pb.RunEvent) -> events.RunPhaseChanged:
    changed = message.run_phase_changed
    return events.RunPhaseChanged.model_validate(
        {
            "run_id": message.run_id,
            "phase": changed.phase,
            "source": changed.source,
            "at": changed.at_ms if changed.HasField("at_ms") else None,
            **optional(changed, "session_key", "conversation_key", "previous_phase"),
        }
    )


def _run_absorbed(message: pb.RunEvent) -> events.RunAbsorbed:
    absorbed = message.run_absorbed
    return events.RunAbsorbed(
        run_id=message.run_id, absorbed_by=absorbed.absorbed_by, mode=absorbed.mode
    )


def _run_failed(message: pb.RunEvent) -> events.RunFailed:
    failed = message.run_failed
    return events.RunFailed.model_validate(
        {
            "run_id": message.run_id,
            "reason": failed.reason,
            **optional(failed, "session_key"),
        }
    )


def pending_from_message(message: pb.PendingApproval) -> events.PendingApproval:
    """The question in `message`; raises `ValidationError`, and `InvalidMessage` for its action."""
    return events.PendingApproval.model_validate(
        {
            "id": message.id,
            "tool": message.tool,
            "action": optional_map(message, "action_json", "pending.action_json"),
            "decisions": list(message.decisions.values) if message.HasField("decisions") else None,
            **optional(
                message,
                "run_id",
                "session_id",
                "session_key",
                "agent_id",
                "rationale",
                "requested_at_ms",
                "expires_at_ms",
            ),
        }
    )


def _approval_requested(message: pb.RunEvent) -> events.ApprovalRequested:
    requested = message.approval_requested
    return events.ApprovalRequested(
        approval_id=requested.approval_id, pending=pending_from_message(requested.pending)
    )


def _approval_resolved(message: pb.RunEvent) -> events.ApprovalResolved:
    resolved = message.approval_resolved
    return events.ApprovalResolved(
        approval_id=resolved.approval_id,
        decision=resolved.decision,
        pending=pending_from_message(resolved.pending) if resolved.HasField("pending") else None,
        reason=resolved.reason if resolved.HasField("reason") else None,
    )


READERS: Final[Mapping[str, Callable[[pb.RunEvent], Payload]]] = {
    "delta": _delta,
    "run_started": _run_started,
    "engine_started": _engine_started,
    "engine_action": _engine_action,
    "engine_completed": lambda message: completion_from_message(message.engine_completed),
    "run_completed": lambda message: run_completed_from_message(message.run_completed),
    "run_phase_changed": _run_phase_changed,
    "run_absorbed": _run_absorbed,
    "run_failed": _run_failed,
    "approval_requested": _approval_requested,
    "approval_resolved": _approval_resolved,
}
