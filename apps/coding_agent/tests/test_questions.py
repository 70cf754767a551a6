"""A task that asks the run it works for (specification coding_agent 7 and 11.21)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from coding_agent.questions import QuestionRefused, Questions
from coding_agent.services import services
from coding_agent.tests.scene import Live, Scene, scene
from lemon_ai.testing import FakeToolCall, Turn
from lemon_core.testing import FakeClock
from lemon_gateway.requests import EngineCompleted

pytestmark = pytest.mark.anyio

QUESTION = {"question": "red or blue?", "why_blocked": "both exist", "options": ["red", "blue"]}


def giving(**arguments: Any) -> Turn:
    given = {"action": "run", "prompt": "child work", "description": "paint", **arguments}
    return Turn(tool_calls=[FakeToolCall("task", given)], when="go")


def asking(**arguments: Any) -> Turn:
    call = FakeToolCall("ask_parent", {**QUESTION, **arguments})
    return Turn(tool_calls=[call], when="child work")


def questions_of(here: Scene) -> Questions:
    """The very object that the tools use."""
    definitions = here.runtime.service(services).tools.definitions
    tool = next(d for d in definitions if d.name == "parent_question")
    found: Questions = tool.execute.args[0]  # type: ignore[attr-defined]  # a partial
    return found


async def open_question(here: Scene, live: Live) -> str:
    """The id of the one open question, waited for."""
    with anyio.fail_after(5):
        while not (found := questions_of(here).open_of("agent:default:main")):
            await anyio.lowlevel.checkpoint()
    return found[0].id


def texts(here: Scene) -> str:
    return "\n".join(str(here.shown(number)) for number in range(len(here.server.requests)))


@pytest.mark.behaviour("coding_agent.21")
async def test_the_parent_answers_while_it_waits_for_the_task(tmp_path: Path) -> None:
    """A join and a call that waits come back with the question, so nobody waits for ever."""
    turns = (
        giving(**{"async": False}),
        asking(),
        Turn(text="painted blue", when="blue!"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        here.server.enqueue(Turn(text="let me see", when="join task", gate="parent"))
        live = await here.start(tasks, "go")
        request_id = await open_question(here, live)
        with anyio.fail_after(5):
            await here.server.gate("parent").reached.wait()
        (record,) = await here.runtime.service(services).children.all()
        answer = {"action": "answer", "request_id": request_id, "answer": "blue!"}
        here.server.enqueue(
            Turn(tool_calls=[FakeToolCall("parent_question", answer)], when="answer it"),
            Turn(
                tool_calls=[FakeToolCall("task", {"action": "join", "task_ids": [record.id]})],
                when="Answered.",
            ),
            Turn(text="it is blue", when="painted blue"),
        )
        await here.executor.steer(live.handle.control, "answer it")
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.answer == "it is blue"
        assert "Options: red; blue" in texts(here)


@pytest.mark.behaviour("coding_agent.21")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"can_continue_without_answer": True, "fallback": "take red"},
            "Nobody answered in time. Go on with your fallback: take red",
        ),
        ({}, "nobody answered in time, and there is no fallback"),
    ],
)
async def test_without_an_answer_the_time_runs_out(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    turns = (
        giving(),
        asking(**arguments),
        Turn(text="on we go", when="in time"),
        Turn(text="busy", when="Task queued", gate="parent"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks, "go")
        await open_question(here, live)
        clock: FakeClock = here.runtime.clock
        (record,) = await here.runtime.service(services).children.all()
        child = here.runtime.service(services).children.living(record.id)
        assert child is not None
        with anyio.fail_after(5):
            await clock.wait_for_sleepers(2)
            await clock.advance(300_000)
            await child.ended.wait()
        assert told in texts(here)
        here.server.enqueue(Turn(text="ok"), Turn(text="ok"))
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))


@pytest.mark.behaviour("coding_agent.21")
async def test_one_question_at_a_time_and_only_its_own_session_answers(tmp_path: Path) -> None:
    turns = (
        giving(),
        asking(),
        Turn(text="done", when="blue"),
        Turn(text="busy", when="Task queued", gate="parent"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks, "go")
        request_id = await open_question(here, live)
        questions = questions_of(here)
        (asked,) = questions.open_of("agent:default:main")
        run_id = asked.child.record.run_id
        with pytest.raises(QuestionRefused, match="one question of this task is open already"):
            await questions.ask(run_id, "another?", "why")
        with pytest.raises(QuestionRefused, match="only a task has a parent to ask"):
            await questions.ask("run_nobody", "another?", "why")
        assert questions.open_of("agent:default:main:sub:other") == []
        with pytest.raises(QuestionRefused, match="there is no open question"):
            questions.answer("agent:default:main:sub:other", request_id, "red")
        questions.answer("agent:default:main", request_id, "blue")
        with pytest.raises(QuestionRefused, match="there is no open question"):
            questions.answer("agent:default:main", request_id, "red")
        with anyio.fail_after(5):
            await asked.child.ended.wait()
        assert asked.child.record.result == "done"
        here.server.enqueue(Turn(text="ok"), Turn(text="ok"))
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        # Nobody but a task is offered the question.
        names = [t["function"]["name"] for t in here.server.requests[0].body["tools"]]
        assert "parent_question" in names
        assert "ask_parent" not in names
