"""Converters of run snapshots and health reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.bridges import ActionState, HealthCheck, HealthReport, RunSnapshot, RunState
from lemon_core.rpc.fields import reading, resume_from_message, resume_to_message, word_of
from lemon_core.rpc.payload_in import (
    optional_map,
    pending_from_message,
    run_completed_from_message,
)
from lemon_core.rpc.payload_out import completion_to_message, pending_to_message
from lemon_core.rpc.wire_json import InvalidMessage, dump_map

_STATES: Final[Mapping[RunState, pb.RunState]] = {
    "queued": pb.RUN_STATE_QUEUED,
    "waiting_lock": pb.RUN_STATE_WAITING_LOCK,
    "starting": pb.RUN_STATE_STARTING,
    "running": pb.RUN_STATE_RUNNING,
    "terminal": pb.RUN_STATE_TERMINAL,
}
_STATE_WORDS: Final[Mapping[pb.RunState, RunState]] = {
    number: word for word, number in _STATES.items()
}


def run_state_to_message(state: RunState) -> pb.RunState:
    """The enum value of a run state."""
    return _STATES[state]


def run_state_from_message(state: pb.RunState) -> RunState:
    """The run state of an enum value; raises `InvalidMessage`."""
    return word_of(_STATE_WORDS, state, "state")


def snapshot_to_message(snapshot: RunSnapshot, *, lean: bool = False) -> pb.RunSnapshot:
    """The message of a snapshot, `lean` without text, actions and questions.

    Raises `InvalidMessage`.
    """
    message = pb.RunSnapshot(
        run_id=snapshot.run_id,
        session_key=snapshot.session_key,
        state=_STATES[snapshot.state],
        phase=snapshot.phase,
        last_event_seq=snapshot.last_event_seq,
        last_delta_seq=snapshot.last_delta_seq,
        accumulated_text="" if lean else snapshot.accumulated_text,
        actions=() if lean else [_action_to_message(action) for action in snapshot.actions],
        applied_steers=snapshot.applied_steers,
        stream_epoch=snapshot.stream_epoch,
        started_at_ms=snapshot.started_at_ms,
        open_approvals=()
        if lean
        else [pending_to_message(pending) for pending in snapshot.open_approvals],
    )
    if snapshot.resume is not None:
        message.resume.CopyFrom(resume_to_message(snapshot.resume))
    if snapshot.terminal is not None:
        message.terminal.completed.CopyFrom(completion_to_message(snapshot.terminal))
        if snapshot.duration_ms is not None:
            message.terminal.duration_ms = snapshot.duration_ms
    return message


def snapshot_from_message(message: pb.RunSnapshot) -> RunSnapshot:
    """The snapshot in `message`; raises `InvalidMessage`."""
    state = word_of(_STATE_WORDS, message.state, "snapshot.state")
    if (state == "terminal") is not message.HasField("terminal"):
        raise InvalidMessage("snapshot.terminal", f"does not fit state {state}")
    with reading("snapshot.open_approvals"):
        questions = tuple(pending_from_message(pending) for pending in message.open_approvals)
    with reading("snapshot.terminal"):
        end = run_completed_from_message(message.terminal) if state == "terminal" else None
    return RunSnapshot(
        run_id=message.run_id,
        session_key=message.session_key,
        state=state,
        stream_epoch=message.stream_epoch,
        phase=message.phase,
        last_event_seq=message.last_event_seq,
        last_delta_seq=message.last_delta_seq,
        accumulated_text=message.accumulated_text,
        resume=resume_from_message(message.resume, "snapshot.resume")
        if message.HasField("resume")
        else None,
        actions=tuple(_action_from_message(action) for action in message.actions),
        applied_steers=tuple(message.applied_steers),
        terminal=None if end is None else end.completed,
        duration_ms=None if end is None else end.duration_ms,
        started_at_ms=message.started_at_ms if message.HasField("started_at_ms") else None,
        open_approvals=questions,
    )


def _action_to_message(action: ActionState) -> pb.ActionState:
    detail = action.detail
    return pb.ActionState(
        id=action.id,
        kind=action.kind,
        title=action.title,
        phase=action.phase,
        ok=action.ok,
        detail_json=None if detail is None else dump_map(detail, "actions.detail_json"),
    )


def _action_from_message(message: pb.ActionState) -> ActionState:
    return ActionState(
        id=message.id,
        kind=message.kind,
        title=message.title,
        phase=message.phase,
        ok=message.ok if message.HasField("ok") else None,
        detail=optional_map(message, "detail_json", "actions.detail_json"),
    )


def health_to_message(report: HealthReport) -> pb.HealthReport:
    """The message of a health report; raises `InvalidMessage` for a detail that is not JSON."""
    return pb.HealthReport(
        ok=report.ok,
        app=report.app,
        timestamp=report.timestamp,
        checks=[_check_to_message(check) for check in report.checks],
        node_id=report.node_id,
        stream_epoch=report.stream_epoch,
        bus_id=report.bus_id,
    )


def health_from_message(message: pb.HealthReport) -> HealthReport:
    """The report in `message`; raises `InvalidMessage`."""
    return HealthReport(
        app=message.app,
        timestamp=message.timestamp,
        checks=tuple(_check_from_message(check) for check in message.checks),
        node_id=message.node_id,
        stream_epoch=message.stream_epoch,
        bus_id=message.bus_id,
    )


def _check_to_message(check: HealthCheck) -> pb.HealthCheck:
    return pb.HealthCheck(
        name=check.name,
        ok=check.ok,
        duration_ms=check.duration_ms,
        detail_json=None if check.detail is None else dump_map(check.detail, "checks.detail_json"),
        error=check.error,
    )


def _check_from_message(message: pb.HealthCheck) -> HealthCheck:
    return HealthCheck(
        name=message.name,
        ok=message.ok,
        duration_ms=message.duration_ms,
        detail=optional_map(message, "detail_json", "checks.detail_json"),
        error=message.error if message.HasField("error") else None,
    )
