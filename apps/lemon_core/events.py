"""The event envelope, the typed payloads of runs and approvals, and the registry of all payloads.

Producers publish the typed models. Consumers of stored or foreign events use `coerce` (lenient);
trust boundaries use `cast` (strict). Types that are not registered travel as plain maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from lemon_core.errors import LemonError
from lemon_core.payload import Payload
from lemon_core.resume import NATIVE_ENGINE, ResumeToken

ActionKind = Literal[
    "tool",
    "command",
    "file_change",
    "web_search",
    "subagent",
    "reasoning",
    "approval",
    "note",
]
ActionPhase = Literal["started", "updated", "completed"]
ErrorValue = str | dict[str, object] | None
"""An error code, `{code, message?, detail?}`, or None."""


class RunStarted(Payload):
    """The gateway began to execute a run; the first event of every run that gets this far."""

    run_id: str
    session_key: str | None = None
    engine: str = NATIVE_ENGINE
    model: str | None = None
    provider: str | None = None
    thinking_level: str | None = None


class Delta(Payload):
    """A piece of visible answer text; `seq` counts the deltas of a run from 1 without gaps."""

    run_id: str
    seq: int = Field(ge=1)
    text: str
    ts_ms: int | None = None
    meta: dict[str, object] | None = None


class EngineStarted(Payload):
    """The executor opened its session; `resume` continues it later."""

    engine: str = NATIVE_ENGINE
    resume: ResumeToken | None = None
    title: str | None = None
    meta: dict[str, object] | None = None
    run_id: str | None = None
    session_key: str | None = None


class Action(Payload):
    """One visible step of a run, such as a tool call; updates carry the same id."""

    id: str
    kind: ActionKind
    title: str
    detail: dict[str, object] | None = None


class EngineAction(Payload):
    """Progress of an action. `ok` is None while it is not known; False always means failed."""

    action: Action
    engine: str = NATIVE_ENGINE
    phase: ActionPhase = "updated"
    ok: bool | None = None
    message: str | None = None
    level: str | None = None


class Completion(Payload):
    """How a run ended. `usage` is None when nobody reported any."""

    ok: bool
    answer: str | None = None
    error: ErrorValue = None
    engine: str = NATIVE_ENGINE
    resume: ResumeToken | None = None
    usage: dict[str, object] | None = None
    run_id: str | None = None
    session_key: str | None = None
    meta: dict[str, object] | None = None


class RunCompleted(Payload):
    """The one terminal event of a run."""

    completed: Completion
    duration_ms: int | None = None


class RunFailed(Payload):
    """The router lost a run's process; a `run_completed` of the gateway may not come any more."""

    run_id: str
    reason: str
    session_key: str | None = None


class RunAbsorbed(Payload):
    """The run became part of another; whoever waits for it goes on with `absorbed_by`."""

    run_id: str
    absorbed_by: str
    mode: str


class RunPhaseChanged(Payload):
    """A step of the run's life as the router sees it; only the router publishes it."""

    run_id: str
    phase: str
    source: str
    session_key: str | None = None
    conversation_key: str | None = None
    previous_phase: str | None = None
    at: int | None = None


class PendingApproval(Payload):
    """A question that waits for a person."""

    id: str
    tool: str
    run_id: str | None = None
    session_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    action: dict[str, object] | None = None
    rationale: str | None = None
    requested_at_ms: int | None = None
    expires_at_ms: int | None = None
    decisions: list[str] | None = None


class ApprovalRequested(Payload):
    """A tool asks for permission."""

    approval_id: str
    pending: PendingApproval


class ApprovalResolved(Payload):
    """A question was answered, or ended without an answer (`decision` is then `timeout`)."""

    approval_id: str
    decision: str
    pending: PendingApproval | None = None
    reason: str | None = None


RunEvent = (
    RunStarted
    | Delta
    | EngineStarted
    | EngineAction
    | Completion
    | RunCompleted
    | RunFailed
    | RunAbsorbed
    | RunPhaseChanged
    | ApprovalRequested
    | ApprovalResolved
    | Mapping[str, object]
)
"""What a run's topic carries; a plain map is an `engine_event`, in the executor's own words."""

GOAL_EVENTS = (
    "goal_set",
    "goal_paused",
    "goal_resumed",
    "goal_completed",
    "goal_cleared",
    "goal_continuation_submitted",
    "goal_loop_verdict",
    "goal_loop_status",
)

_OF_RUNS: Mapping[str, type[Payload]] = {
    "run_started": RunStarted,
    "delta": Delta,
    "engine_started": EngineStarted,
    "engine_action": EngineAction,
    "engine_completed": Completion,
    "run_completed": RunCompleted,
    "run_failed": RunFailed,
    "run_absorbed": RunAbsorbed,
    "run_phase_changed": RunPhaseChanged,
    "approval_requested": ApprovalRequested,
    "approval_resolved": ApprovalResolved,
}


@cache
def registry() -> Mapping[str, type[Payload]]:
    """The payload model of every registered type.

    Those that most processes never see are imported here, which a start need not pay for.
    """
    from lemon_core import automation_events as automation
    from lemon_core import system_events as system

    return {
        **_OF_RUNS,
        "coalesced_output": system.CoalescedOutput,
        "cron_tick": automation.CronTick,
        "cron_run_started": automation.CronRunStarted,
        "cron_run_completed": automation.CronRunCompleted,
        "cron_job_created": automation.CronJobChanged,
        "cron_job_updated": automation.CronJobChanged,
        "cron_job_deleted": automation.CronJobChanged,
        "cron_lifecycle_action": automation.CronLifecycleAction,
        "heartbeat_alert": automation.HeartbeatAlert,
        "heartbeat_suppressed": automation.HeartbeatSuppressed,
        "config_reloaded": system.ConfigReloaded,
        "config_reload_failed": system.ConfigReloadFailed,
        "secret_changed": system.SecretChanged,
        "session_reset": system.SessionReset,
        "talk_mode_changed": system.TalkModeChanged,
        **dict.fromkeys(GOAL_EVENTS, automation.GoalChanged),
        "routing_feedback": system.RoutingFeedback,
        "channel_delivery": system.ChannelDelivery,
    }


@dataclass(frozen=True, slots=True)
class Event:
    """One event on a bus topic.

    `meta` carries routing identity where it applies: `run_id, session_key, origin, agent_id, model,
    node_id, event_seq, synthetic`. Treat payload and meta as read-only: all subscribers share them.
    """

    type: str
    ts_ms: int
    payload: object
    meta: Mapping[str, object]

    def to_map(self) -> dict[str, object]:
        """The JSON form; unset optional payload fields are present as null."""
        return {
            "type": self.type,
            "ts_ms": self.ts_ms,
            "payload": payload_map(self.payload),
            "meta": dict(self.meta),
        }


class EventPayloadError(LemonError):
    """A payload that is not what its event type promises."""

    code = "event_payload"

    def __init__(self, event_type: str, reason: str) -> None:
        super().__init__(f"event {event_type}: {reason}")
        self.event_type, self.reason = event_type, reason


def payload_map(payload: object) -> object:
    """`payload` as plain JSON values."""
    return payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload


def registered(event_type: str) -> type[Payload] | None:
    """The payload model of `event_type`, or None for types that travel as plain maps."""
    return _OF_RUNS.get(event_type) or registry().get(event_type)


def cast(event_type: str, payload: object) -> object:
    """`payload` as its registered model; raises `EventPayloadError`. Unregistered types pass."""
    model = registered(event_type)
    if model is None or isinstance(payload, model):
        return payload
    try:
        return model.model_validate(payload)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "payload"
        raise EventPayloadError(event_type, f"{where}: {first['msg']}") from exc


def coerce(event_type: str, payload: object) -> object:
    """`payload` as its model where possible, unknown keys dropped; else `payload` unchanged."""
    model = registered(event_type)
    if model is None or isinstance(payload, model) or not isinstance(payload, Mapping):
        return payload
    try:
        return model.model_validate(dict(payload), extra="ignore")
    except ValidationError:
        return payload
