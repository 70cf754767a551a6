"""`todo`: the task list of this conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from coding_agent.todos import Todo, actionable, parse_todos, progress
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError


async def _todo(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    store, session_id = env.shared.todos, env.identity.session_id
    if call.params["action"] == "write":
        given = call.params.get("todos")
        if given is None:
            raise ToolError("write needs todos, the whole list")
        todos = parse_todos(given)
        await store.save(session_id, todos)
        return _listed(todos)
    todos = await store.load(session_id)
    match call.params["action"]:
        case "progress":
            counts = progress(todos)
            return AgentToolResult.of_text(json.dumps(counts, indent=2), details=counts)
        case "actionable":
            return _listed(actionable(todos))
        case _:
            return _listed(todos)


TODO: Final = ToolDef(
    name="todo",
    description="Keep a task list for work of several steps; write replaces the whole list.",
    parameters=schema(
        ("action",),
        action={"type": "string", "enum": ["read", "write", "progress", "actionable"]},
        todos={
            "type": "array",
            "items": schema(
                ("id", "content", "status", "priority"),
                id=text_param("Short and unique."),
                content=text_param("What is to be done."),
                status={"type": "string", "enum": ["pending", "in_progress", "completed"]},
                priority={"type": "string", "enum": ["high", "medium", "low"]},
                dependencies={"type": "array", "items": {"type": "string"}},
            ),
        },
    ),
    execute=_todo,
)


def _listed(todos: Sequence[Todo]) -> AgentToolResult:
    rows = [todo.model_dump(mode="json") for todo in todos]
    title = f"{len(rows)} todo{'' if len(rows) == 1 else 's'}"
    text = json.dumps(rows, indent=2, ensure_ascii=False)
    return AgentToolResult.of_text(text, details={"title": title, "todos": rows})
