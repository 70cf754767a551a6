"""What may be asked of the running agent (specification coding_agent 9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from coding_agent.services import services
from coding_agent.tests.scene import SESSION_KEY, Scene, scene, tool_turn
from lemon_ai.testing import FakeToolCall, Turn
from lemon_core.agent_runtime import AgentCallback, AgentRuntime
from lemon_core.resume import ChatState, ResumeToken
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

LONG = "word " * 5_000


async def ask(here: Scene, name: AgentCallback, *args: object, **options: object) -> Any:
    runtime = AgentRuntime(here.runtime.capabilities, here.runtime.clock)
    assert runtime.available()
    with anyio.fail_after(5):
        return await runtime.call(name, *args, fallback="no answer", **options)


async def remember(here: Scene, resume: ResumeToken | None) -> None:
    """Note the session's file as the gateway does at the end of a run."""
    assert resume is not None
    state = ChatState(last_engine="lemon", last_resume_token=resume.value)
    await here.runtime.chat_states.put(SESSION_KEY, state)


def compactions(here: Scene) -> list[dict[str, Any]]:
    (path,) = here.session_files
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["type"] == "compaction"]


async def test_tasks_and_their_graph_can_be_seen(tmp_path: Path) -> None:
    call = FakeToolCall("task", {"action": "run", "prompt": "child work", "async": False})
    turns = (
        Turn(tool_calls=[call], when="go"),
        Turn(text="child answer", when="child work"),
        Turn(text="ok"),
    )
    async with scene(tmp_path, *turns) as here:
        live = await here.run("go")
        ((task_id, facts),) = await ask(here, "list_tasks")
        assert (facts["status"], facts["description"]) == ("completed", "child work")
        record, steps = await ask(here, "get_task", task_id)
        assert (record["result"], steps) == ("child answer", [])
        assert await ask(here, "get_task", "nobody") == ({}, [])
        graph = await ask(here, "run_graph", live.handle.run_ref)
        assert graph["status"] == "unknown"
        (child,) = graph["children"]
        assert (child["task_id"], child["status"], child["children"]) == (task_id, "completed", [])
        below = await ask(here, "run_graph", record["run_id"])
        assert (below["parent_run_id"], below["status"]) == (live.handle.run_ref, "completed")


async def test_the_list_of_a_session_is_told(tmp_path: Path) -> None:
    todos = [
        {"id": "1", "content": "a", "status": "completed", "priority": "high"},
        {"id": "2", "content": "b", "status": "pending", "priority": "low"},
    ]
    turns = (tool_turn("todo", action="write", todos=todos), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here:
        assert await ask(here, "todo_progress", SESSION_KEY) == {"actionable_count": 0}
        resume = (await here.run()).completed.resume
        await remember(here, resume)
        progress = await ask(here, "todo_progress", SESSION_KEY)
        assert (progress["total"], progress["actionable_count"]) == (2, 1)
        assert resume is not None
        snapshot = await ask(here, "progress_snapshot", resume.value, str(here.cwd))
        assert [todo["id"] for todo in snapshot["todos"]] == ["1", "2"]
        assert snapshot["progress"] == progress


async def test_a_conversation_is_shortened_by_hand(tmp_path: Path) -> None:
    """With a summary at once; by a model in the background; never under a run that lives."""
    turns = (
        Turn(text=LONG),
        Turn(text="model's summary", when="<transcript>", gate="summary"),
        Turn(text="ok", when="well?"),
    )
    async with scene(tmp_path, *turns) as here:
        missing = await ask(here, "compact_session", SESSION_KEY)
        assert missing == {"error": "session_not_found"}
        resume = (await here.run(f"first {LONG}")).completed.resume
        await remember(here, resume)
        done = await ask(
            here, "compact_session", SESSION_KEY, summary="mine", keep_recent_tokens=100
        )
        assert done["status"] == "compacted"
        assert done["tokens_after"] < done["tokens_before"]
        assert len(compactions(here)) == 1
        again = await ask(here, "compact_session", SESSION_KEY, keep_recent_tokens=100)
        assert again["error"] == "cannot_compact"
        await here.run("well?", resume=resume)
        assert "mine" in here.shown()[1][1]
        assert "first" not in here.shown()[1][1]

        started = await ask(here, "compact_session", SESSION_KEY, keep_recent_tokens=1)
        assert started["status"] == "started"
        with anyio.fail_after(5):
            await here.server.gate("summary").reached.wait()
            here.server.gate("summary").open()
            while len(compactions(here)) < 2:
                await anyio.lowlevel.checkpoint()
        assert "model's summary" in compactions(here)[-1]["summary"]


@pytest.mark.behaviour("coding_agent.9")
async def test_a_summary_by_hand_that_comes_too_late_is_dropped(tmp_path: Path) -> None:
    turns = (
        Turn(text=LONG),
        Turn(text="late", when="<transcript>", gate="summary"),
        Turn(text="ok", when="well?"),
    )
    async with scene(tmp_path, *turns) as here:
        resume = (await here.run(f"first {LONG}")).completed.resume
        await remember(here, resume)
        started = await ask(here, "compact_session", SESSION_KEY, keep_recent_tokens=100)
        assert started["status"] == "started"
        with anyio.fail_after(5):
            await here.server.gate("summary").reached.wait()
        await here.run("well?", resume=resume)
        here.server.gate("summary").open()
        with anyio.fail_after(5):
            await here.server.wait_idle()
        tasks = here.runtime.capabilities.get("agent_runtime")._tasks
        with anyio.fail_after(5):
            while tasks._tasks:
                await anyio.lowlevel.checkpoint()
        assert compactions(here) == []


async def test_a_session_with_a_living_run_is_busy(tmp_path: Path) -> None:
    turns = (Turn(text=["a", "b"], gate="held", gate_after=1),)
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks)
        await live.until_delta("a")
        assert await ask(here, "compact_session", SESSION_KEY) == {"error": "session_busy"}
        assert (await ask(here, "run_graph", live.handle.run_ref))["status"] == "running"
        here.server.gate("held").open()


async def test_what_is_not_there_answers_with_the_fallback(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        unknown = cast(AgentCallback, "no_such_callback")
        assert await ask(here, unknown, "/x") == "no answer"
        assert isinstance(here.runtime.clock, FakeClock)
        assert here.runtime.service(services).is_up
