"""Actions that are made of something else: thoughts of a model, steps of a child run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from lemon_core.events import Action, ActionPhase, EngineAction, Event
from lemon_core.ids import now_ms


def reasoning_event(
    run_id: str,
    session_key: str,
    text: str,
    *,
    source: str = "unknown",
    phase: ActionPhase = "updated",
    visibility: str = "operator",
    action_id: str | None = None,
    title: str = "Reasoning",
    meta: Mapping[str, object] | None = None,
) -> Event:
    """An `engine_action` event that shows what a model thinks.

    Without `action_id` equal text of one source and phase gets the same id, so that a repeated
    report updates its action. Raises ValueError for blank text, run or session.
    """
    for name, value in (("run id", run_id), ("session key", session_key), ("text", text)):
        if not value.strip():
            raise ValueError(f"a reasoning event needs a {name}")
    digest = hashlib.sha256(f"{source}:{phase}:{text}".encode()).hexdigest()
    action = Action(
        id=action_id or f"reasoning:{run_id}:{digest[:16]}",
        kind="reasoning",
        title=title,
        detail={"text": text, "source": source, "visibility": visibility},
    )
    ok = True if phase == "completed" else None
    payload = EngineAction(action=action, phase=phase, ok=ok)
    identity = {**(meta or {}), "run_id": run_id, "session_key": session_key}
    return Event("engine_action", now_ms(), payload, identity)


@dataclass(frozen=True, slots=True)
class ChildBinding:
    """Where a child run hangs in its parent: the task, and the tool call that started it."""

    child_run_id: str
    task_id: str | None = None
    parent_tool_use_id: str | None = None


def project_child_action(payload: EngineAction, binding: ChildBinding) -> EngineAction:
    """An action of a child run as the parent's surface shows it; its id is the child's, marked."""
    action = payload.action
    name = action.id
    if not name:
        digest = hashlib.sha256(action.title.encode()).hexdigest()
        name = f"{action.kind}:{digest[:12]}"
    detail = {
        **(action.detail or {}),
        "parent_tool_use_id": binding.parent_tool_use_id,
        "task_id": binding.task_id,
        "child_run_id": binding.child_run_id,
        "projected_from": "child_run",
    }
    projected = action.model_copy(
        update={"id": f"taskproj:{binding.child_run_id}:{name}", "detail": detail}
    )
    return payload.model_copy(update={"action": projected})
