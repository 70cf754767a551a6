"""What whoever watches sees of a child: on its own topic, and marked on its parent's."""

from __future__ import annotations

from typing import Final

from coding_agent.child import Child
from coding_agent.tasks import TaskRecord
from lemon_core.actions import project_child_action
from lemon_core.bus import Bus, run_topic
from lemon_core.events import EngineAction as ActionEvent
from lemon_gateway.requests import EngineAction, EngineCompleted, SinkMessage

MAX_ACTIONS: Final = 100


class ChildEvents:
    """Publishes on the bus of the runtime."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def project(self, child: Child, message: EngineAction) -> None:
        """Show a step of a child on its own topic and, marked, on its parent's."""
        event = ActionEvent(
            action=message.action,
            engine=message.engine,
            phase=message.phase,
            ok=message.ok,
            message=message.message,
            level=message.level,
        )
        child.current_action = None if message.phase == "completed" else message.action.title
        child.actions.append(
            {"id": message.action.id, "title": message.action.title, "phase": message.phase}
        )
        del child.actions[:-MAX_ACTIONS]
        record = child.record
        meta = {"run_id": record.run_id, "session_key": record.session_key}
        self._bus.publish_event(run_topic(record.run_id), "engine_action", event, meta)
        shown = project_child_action(event, child.binding)
        self._bus.publish_event(
            run_topic(record.parent_run_id),
            "task_projected_child_action",
            shown.model_dump(mode="json"),
            {"run_id": record.parent_run_id, "session_key": record.parent_session_key},
        )

    def tell(self, event_type: str, record: TaskRecord) -> None:
        """Say what has become of a task."""
        for run_id, key in (
            (record.run_id, record.session_key),
            (record.parent_run_id, record.parent_session_key),
        ):
            meta = {"run_id": run_id, "session_key": key, "agent_id": record.agent_id}
            self._bus.publish_event(run_topic(run_id), event_type, record.facts(), meta)
        self.tell_graph(record)

    def tell_graph(self, record: TaskRecord) -> None:
        """Say that the tree of runs around a task is another one."""
        facts = {"run_id": record.run_id, "parent_run_id": record.parent_run_id}
        payload = {**facts, "task_id": record.id, "status": record.status}
        for run_id in (record.run_id, record.parent_run_id):
            meta = {"run_id": run_id}
            for topic in (run_topic(run_id), f"run_graph:{run_id}"):
                self._bus.publish_event(topic, "run_graph_changed", payload, meta)


class ChildSink:
    """A child's messages: its steps are shown, its completion is kept."""

    def __init__(self, events: ChildEvents, child: Child) -> None:
        self._events, self._child = events, child

    async def send(self, message: SinkMessage) -> None:
        """Take a message of the child."""
        match message:
            case EngineAction():
                self._events.project(self._child, message)
            case EngineCompleted():
                self._child.completion = message
            case _:
                pass
