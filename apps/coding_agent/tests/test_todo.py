"""`todo` (specification coding_agent 7)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coding_agent.tests.harness import call, details, kept_in, tool_env
from coding_agent.todos import Todos
from coding_agent.tools.todo import TODO
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


def item(name: str, **facts: Any) -> dict[str, Any]:
    return {"id": name, "content": name, "status": "pending", "priority": "medium", **facts}


LIST = [
    item("a", status="completed"),
    item("b", dependencies=["a"]),
    item("c", dependencies=["b"], priority="high"),
    item("d", priority="high", status="in_progress"),
]


async def test_the_list_is_kept_for_its_conversation(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    result = await call(TODO, env, action="write", todos=LIST)
    assert details(result)["title"] == "4 todos"
    assert [row["id"] for row in json.loads(result.text)] == ["a", "b", "c", "d"]
    assert (await call(TODO, env, action="read")).text == result.text
    other = replace(env, identity=replace(env.identity, session_id="sess_2"))
    assert (await call(TODO, other, action="read")).text == "[]"
    path = kept_in(tmp_path) / "todos" / "sess_1.json"
    assert path.stat().st_mode & 0o777 == 0o600
    again = await Todos(path.parent).load("sess_1")
    assert [todo.id for todo in again] == ["a", "b", "c", "d"]


async def test_what_can_be_done_now_comes_by_priority(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    await call(TODO, env, action="write", todos=LIST)
    ready = json.loads((await call(TODO, env, action="actionable")).text)
    assert [row["id"] for row in ready] == ["d", "b"]
    counts = json.loads((await call(TODO, env, action="progress")).text)
    assert counts == {
        "total": 4,
        "pending": 2,
        "in_progress": 1,
        "completed": 1,
        "blocked": 0,
        "percent": 25,
    }


@pytest.mark.parametrize(
    ("todos", "problem"),
    [
        (None, "write needs todos"),
        ([item("a"), item("a")], "two todos have the id 'a'"),
        ([item("a", status="done")], r"todos\.0\.status"),
        ([item("a", priority="urgent")], r"todos\.0\.priority"),
        ([item("a", dependencies=["x"])], "depends on 'x'"),
        ([item("")], r"todos\.0\.id"),
        ([item(str(n)) for n in range(201)], "201 todos, 200 is the most"),
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(
    tmp_path: Path, todos: Any, problem: str
) -> None:
    env = tool_env(tmp_path)
    with pytest.raises(ToolError, match=problem):
        await call(TODO, env, action="write", todos=todos)
    assert (await call(TODO, env, action="read")).text == "[]"


async def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    await call(TODO, env, action="write", todos=LIST)
    (kept_in(tmp_path) / "todos" / "sess_1.json").write_text("{")
    with pytest.raises(ToolError, match="cannot be read: write the list anew"):
        await call(TODO, env, action="read")
    await call(TODO, env, action="write", todos=[])
    assert (await call(TODO, env, action="read")).text == "[]"
