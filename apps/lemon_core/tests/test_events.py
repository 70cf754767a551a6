"""Event payloads, coercion and casting (specification lemon_core 4.1 and 4.2)."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from lemon_core.actions import ChildBinding, project_child_action, reasoning_event
from lemon_core.automation_events import (
    CronJobChanged,
    CronLifecycleAction,
    CronRunCompleted,
    CronRunStarted,
    CronTick,
    GoalChanged,
    HeartbeatAlert,
    HeartbeatSuppressed,
)
from lemon_core.events import (
    GOAL_EVENTS,
    Action,
    ApprovalRequested,
    ApprovalResolved,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    EventPayloadError,
    PendingApproval,
    RunAbsorbed,
    RunCompleted,
    RunFailed,
    RunPhaseChanged,
    RunStarted,
    cast,
    coerce,
    registered,
    registry,
)
from lemon_core.payload import Payload
from lemon_core.resume import ResumeToken
from lemon_core.system_events import (
    ChannelDelivery,
    CoalescedOutput,
    ConfigReloaded,
    ConfigReloadFailed,
    RoutingFeedback,
    SecretChanged,
    SessionReset,
    TalkModeChanged,
)

TOKEN = ResumeToken(engine="lemon", value="s1")
ACTION = Action(id="tool_1", kind="command", title="`ls`", detail={"result_meta": {"exit_code": 2}})
DONE = Completion(ok=False, answer="a", error={"code": "x"}, resume=TOKEN, usage={"input": 1})
PENDING = PendingApproval(id="appr_1", tool="bash", action={"command": "ls"})
EXAMPLES: dict[str, Payload] = {
    "run_started": RunStarted(run_id="r", session_key="agent:a:main", model="m"),
    "delta": Delta(run_id="r", seq=1, text="hé", ts_ms=5),
    "engine_started": EngineStarted(resume=TOKEN, title="t", meta={"cwd": "/x"}),
    "engine_action": EngineAction(action=ACTION, phase="completed", ok=False),
    "engine_completed": DONE,
    "run_completed": RunCompleted(completed=DONE, duration_ms=3),
    "run_failed": RunFailed(run_id="r", reason="gone"),
    "run_absorbed": RunAbsorbed(run_id="r", absorbed_by="s", mode="steer"),
    "run_phase_changed": RunPhaseChanged(run_id="r", phase="streaming", source="router", at=1),
    "approval_requested": ApprovalRequested(approval_id="appr_1", pending=PENDING),
    "approval_resolved": ApprovalResolved(approval_id="appr_1", decision="deny", pending=PENDING),
    "secret_changed": SecretChanged(owner="default", name="KEY", action="set"),
    "coalesced_output": CoalescedOutput(
        session_key="s", channel_id="telegram", run_id="r", text="so far", seq=2
    ),
    "cron_tick": CronTick(timestamp_ms=1),
    "cron_run_started": CronRunStarted(cron_run_id="c", job_id="j", run={"id": "c"}),
    "cron_run_completed": CronRunCompleted(cron_run_id="c", job_id="j", suppressed=True),
    "cron_job_created": CronJobChanged(action="created", job_id="j", job={"id": "j"}),
    "cron_job_updated": CronJobChanged(action="updated", job_id="j", name="n"),
    "cron_job_deleted": CronJobChanged(action="deleted", job_id="j"),
    "cron_lifecycle_action": CronLifecycleAction(audit={"action": "run_now"}),
    "heartbeat_alert": HeartbeatAlert(agent_id="a", response="look"),
    "heartbeat_suppressed": HeartbeatSuppressed(agent_id="a", run_id="r"),
    "config_reloaded": ConfigReloaded(
        reload_id="1", changed_sources=["global"], changed_paths=["tui.theme"], diff={"x": 1}
    ),
    "config_reload_failed": ConfigReloadFailed(reload_id="1", error="line 3"),
    "session_reset": SessionReset(session_key="s"),
    "talk_mode_changed": TalkModeChanged(session_key="s", mode="on"),
    **{name: GoalChanged(goal_id="g", status="active") for name in GOAL_EVENTS},
    "routing_feedback": RoutingFeedback(fingerprint_key="f", outcome="success", duration_ms=3),
    "channel_delivery": ChannelDelivery(
        intent_id="i", channel_id="telegram", kind="final_text", ok=False, text_preview="x" * 200
    ),
}

# What the registry's table promises when only the required fields are given.
DEFAULTS: dict[str, dict[str, object]] = {
    "engine_action": {"phase": "updated", "ok": None},
    "cron_run_started": {"triggered_by": "schedule"},
    "cron_run_completed": {"suppressed": False},
    "heartbeat_alert": {"severity": "warning"},
    "cron_job_deleted": {"job": None},
}
REQUIRED: dict[str, set[str]] = {
    "run_started": {"run_id"},
    "delta": {"run_id", "seq", "text"},
    # Its provenance can only be Lemon's own, so nobody has to say it.
    "engine_started": set(),
    "engine_completed": {"ok"},
    "engine_action": {"action"},
    "run_completed": {"completed"},
    "run_failed": {"run_id", "reason"},
    "run_absorbed": {"run_id", "absorbed_by", "mode"},
    "run_phase_changed": {"run_id", "phase", "source"},
    "coalesced_output": {"session_key", "channel_id", "run_id", "text", "seq"},
    "approval_requested": {"approval_id", "pending"},
    "approval_resolved": {"approval_id", "decision"},
    "cron_tick": {"timestamp_ms"},
    "cron_run_started": {"cron_run_id", "job_id"},
    "cron_run_completed": {"cron_run_id", "job_id"},
    "cron_job_created": {"action", "job_id"},
    "cron_job_updated": {"action", "job_id"},
    "cron_job_deleted": {"action", "job_id"},
    "cron_lifecycle_action": {"audit"},
    "heartbeat_alert": {"agent_id"},
    "heartbeat_suppressed": {"agent_id"},
    "config_reloaded": {"reload_id"},
    "config_reload_failed": {"reload_id", "error"},
    "secret_changed": {"owner", "name", "action"},
    "session_reset": {"session_key"},
    "talk_mode_changed": {"session_key", "mode"},
    **{name: {"goal_id"} for name in GOAL_EVENTS},
    "routing_feedback": {"fingerprint_key", "outcome"},
    "channel_delivery": {"intent_id", "channel_id", "kind", "ok"},
}


@pytest.mark.behaviour("lemon_core.7")
def test_every_registered_payload_survives_json() -> None:
    assert set(EXAMPLES) == set(registry())
    for event_type, payload in EXAMPLES.items():
        raw = json.loads(json.dumps(Event(event_type, 1, payload, {}).to_map()))
        assert cast(event_type, raw["payload"]) == payload
        assert registered(event_type) is type(payload)


@pytest.mark.behaviour("lemon_core.7")
def test_constructors_refuse_unknown_keys() -> None:
    for payload in EXAMPLES.values():
        with pytest.raises(ValidationError):
            type(payload).model_validate({**payload.model_dump(), "surprise": 1})


@pytest.mark.behaviour("lemon_core.7")
def test_coerce_drops_unknown_keys_and_keeps_a_false_ok() -> None:
    loose = {"action": {"id": "1", "kind": "tool", "title": "t", "x": 1}, "ok": False, "y": 2}
    built = coerce("engine_action", loose)
    assert isinstance(built, EngineAction)
    assert built.ok is False
    impossible = {"action": 3}
    assert coerce("engine_action", impossible) is impossible
    assert coerce("task_started", impossible) is impossible


@pytest.mark.behaviour("lemon_core.7")
def test_cast_raises_with_the_reason() -> None:
    with pytest.raises(EventPayloadError, match="delta: seq") as caught:
        cast("delta", {"run_id": "r", "seq": 0, "text": ""})
    assert caught.value.event_type == "delta"
    plain = {"anything": 1}
    assert cast("not_registered", plain) is plain


@pytest.mark.behaviour("lemon_core.7")
def test_required_fields_and_defaults_are_those_of_the_table() -> None:
    assert REQUIRED.keys() == registry().keys()
    for event_type, model in registry().items():
        required = {name for name, info in model.model_fields.items() if info.is_required()}
        assert required == REQUIRED[event_type], event_type
        for name, default in DEFAULTS.get(event_type, {}).items():
            assert model.model_fields[name].default == default


@pytest.mark.behaviour("lemon_core.7")
def test_coerce_keeps_the_false_of_every_kind_of_payload() -> None:
    for event_type in ("engine_completed", "channel_delivery"):
        loose = {**EXAMPLES[event_type].model_dump(mode="json"), "ok": False, "new": 1}
        built = coerce(event_type, loose)
        assert isinstance(built, Completion | ChannelDelivery)
        assert built.ok is False


def test_a_reasoning_event_is_an_action_that_repeats_under_one_id() -> None:
    """Specification lemon_core 4.2."""
    event = reasoning_event("run_1", "agent:a:main", "because", source="model")
    again = reasoning_event("run_1", "agent:a:main", "because", source="model")
    other = reasoning_event("run_1", "agent:a:main", "because", source="model", phase="completed")
    payload, done = event.payload, other.payload
    assert isinstance(payload, EngineAction)
    assert isinstance(done, EngineAction)
    assert payload == again.payload
    assert event.meta == {"run_id": "run_1", "session_key": "agent:a:main"}
    # echo -n "model:updated:because" | sha256sum
    assert payload.action == Action(
        id="reasoning:run_1:a82cccb9577ab0b3",
        kind="reasoning",
        title="Reasoning",
        detail={"text": "because", "source": "model", "visibility": "operator"},
    )
    assert (payload.phase, payload.ok, done.ok) == ("updated", None, True)
    assert done.action.id != payload.action.id
    given = reasoning_event("run_1", "s", "t", action_id="mine", meta={"agent_id": "a"})
    assert isinstance(given.payload, EngineAction)
    assert (given.payload.action.id, given.meta["agent_id"]) == ("mine", "a")


@pytest.mark.parametrize("blank", [("", "s", "t"), ("r", " ", "t"), ("r", "s", "\n")])
def test_a_reasoning_event_of_nothing_raises(blank: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="needs a"):
        reasoning_event(*blank)


def test_a_childs_action_is_shown_under_its_task() -> None:
    """Specification lemon_core 4.2."""
    binding = ChildBinding("run_2", task_id="t1", parent_tool_use_id="call_1")
    projected = project_child_action(EngineAction(action=ACTION, ok=False), binding)
    assert projected == EngineAction(
        action=Action(
            id="taskproj:run_2:tool_1",
            kind="command",
            title="`ls`",
            detail={
                "result_meta": {"exit_code": 2},
                "parent_tool_use_id": "call_1",
                "task_id": "t1",
                "child_run_id": "run_2",
                "projected_from": "child_run",
            },
        ),
        ok=False,
    )
    nameless = EngineAction(action=Action(id="", kind="note", title="`ls`"))
    # echo -n "`ls`" | sha256sum
    assert project_child_action(nameless, binding).action.id == "taskproj:run_2:note:fcacb0edbade"
