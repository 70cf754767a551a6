"""Event payloads, coercion and casting (specification lemon_core 4.1 and 4.2)."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from lemon_core.events import (
    REGISTRY,
    Action,
    ApprovalRequested,
    ApprovalResolved,
    Completion,
    Delta,
    EngineAction,
    EngineStarted,
    Event,
    EventPayloadError,
    Payload,
    PendingApproval,
    RunAbsorbed,
    RunCompleted,
    RunFailed,
    RunPhaseChanged,
    RunStarted,
    SecretChanged,
    cast,
    coerce,
    registered,
)
from lemon_core.resume import ResumeToken

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
}


@pytest.mark.behaviour("lemon_core.7")
def test_every_registered_payload_survives_json() -> None:
    assert set(EXAMPLES) == set(REGISTRY)
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
