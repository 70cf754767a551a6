"""Converters of what the router shows of sessions and runs."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message

from lemon.execution.v1 import execution_pb2 as epb
from lemon.router.v1 import router_pb2 as pb
from lemon_core.events import PendingApproval
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.rpc.fields import reading
from lemon_core.rpc.payload_in import completion_from_message, pending_from_message
from lemon_core.rpc.payload_out import completion_to_message, pending_to_message
from lemon_core.store.wrappers import UNSET, SessionSettings, Unset


def run_info_to_message(info: RunInfo) -> pb.RunInfo:
    """The message of a run; raises `InvalidMessage` when its completion is not JSON."""
    completion = info.completion
    return pb.RunInfo(
        run_id=info.run_id,
        session_key=info.session_key,
        state=info.state,
        phase=info.phase,
        agent_id=info.agent_id,
        origin=info.origin,
        prompt=info.prompt,
        model=info.model,
        node_id=info.node_id,
        absorbed_by=info.absorbed_by,
        completion=None if completion is None else completion_to_message(completion),
        duration_ms=info.duration_ms,
        created_at_ms=info.created_at_ms,
        updated_at_ms=info.updated_at_ms,
    )


def run_info_from_message(message: pb.RunInfo) -> RunInfo:
    """The run in `message`; raises `InvalidMessage`."""
    with reading("run.completion"):
        completion = (
            completion_from_message(message.completion) if message.HasField("completion") else None
        )
    return RunInfo(
        run_id=message.run_id,
        session_key=message.session_key,
        state=message.state,
        agent_id=message.agent_id,
        origin=message.origin,
        created_at_ms=message.created_at_ms,
        updated_at_ms=message.updated_at_ms,
        phase=_text(message, "phase"),
        prompt=_text(message, "prompt"),
        model=_text(message, "model"),
        node_id=_text(message, "node_id"),
        absorbed_by=_text(message, "absorbed_by"),
        completion=completion,
        duration_ms=_number(message, "duration_ms"),
    )


def session_info_to_message(info: SessionInfo) -> pb.SessionInfo:
    """The message of a session's line."""
    return pb.SessionInfo(
        session_key=info.session_key,
        agent_id=info.agent_id,
        origin=info.origin,
        active_run_id=info.active_run_id,
        queued_count=info.queued_count,
        run_count=info.run_count,
        created_at_ms=info.created_at_ms,
        updated_at_ms=info.updated_at_ms,
    )


def session_info_from_message(message: pb.SessionInfo) -> SessionInfo:
    """The line in `message`."""
    return SessionInfo(
        session_key=message.session_key,
        agent_id=message.agent_id,
        origin=_text(message, "origin"),
        active_run_id=_text(message, "active_run_id"),
        queued_count=message.queued_count,
        run_count=message.run_count,
        created_at_ms=_number(message, "created_at_ms"),
        updated_at_ms=_number(message, "updated_at_ms"),
    )


def session_to_message(view: SessionView) -> pb.Session:
    """The message of a session; raises `InvalidMessage`."""
    return pb.Session(
        info=session_info_to_message(view.info),
        model=view.model,
        thinking_level=view.thinking_level,
        runs=[run_info_to_message(run) for run in view.runs],
    )


def session_from_message(message: pb.Session) -> SessionView:
    """The session in `message`; raises `InvalidMessage`."""
    return SessionView(
        info=session_info_from_message(message.info),
        model=_text(message, "model"),
        thinking_level=_text(message, "thinking_level"),
        runs=tuple(run_info_from_message(run) for run in message.runs),
    )


def settings_to_message(settings: SessionSettings) -> pb.SessionSettings:
    """The message of a session's choices."""
    return pb.SessionSettings(model=settings.model, thinking_level=settings.thinking_level)


def settings_from_message(message: pb.SessionSettings) -> SessionSettings:
    """The choices in `message`."""
    return SessionSettings(_text(message, "model"), _text(message, "thinking_level"))


def patch_to_message(
    session_key: str, model: str | Unset | None, thinking_level: str | Unset | None
) -> pb.PatchSessionRequest:
    """The message that changes choices; None takes one back, `UNSET` leaves it."""
    return pb.PatchSessionRequest(
        session_key=session_key,
        model=None if isinstance(model, Unset) else model or "",
        thinking_level=None if isinstance(thinking_level, Unset) else thinking_level or "",
    )


def patch_from_message(
    message: pb.PatchSessionRequest,
) -> tuple[str | Unset | None, str | Unset | None]:
    """What `message` wants of model and thinking level."""
    return (
        (message.model or None) if message.HasField("model") else UNSET,
        (message.thinking_level or None) if message.HasField("thinking_level") else UNSET,
    )


def approvals_to_message(pending: Iterable[PendingApproval]) -> pb.ListApprovalsResponse:
    """The message of open questions; raises `NotJson` for an action that is not JSON."""
    return pb.ListApprovalsResponse(approvals=[pending_to_message(item) for item in pending])


def approvals_from_message(message: pb.ListApprovalsResponse) -> list[PendingApproval]:
    """The questions in `message`; raises `InvalidMessage`."""
    with reading("approvals"):
        return [pending_from_message(item) for item in message.approvals]


def resolve_to_message(approval_id: str, decision: str) -> epb.ResolveApprovalRequest:
    """The message that answers a question."""
    return epb.ResolveApprovalRequest(approval_id=approval_id, decision=decision)


def _text(message: Message, name: str) -> str | None:
    return str(getattr(message, name)) if message.HasField(name) else None


def _number(message: Message, name: str) -> int | None:
    return int(getattr(message, name)) if message.HasField(name) else None
