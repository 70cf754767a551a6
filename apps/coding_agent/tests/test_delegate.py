"""Asking another agent, and what a task's words mean (specification coding_agent 7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from coding_agent.child import ChildSpec
from coding_agent.delivered import HEADLINE
from coding_agent.roles import BUILT_IN, roles
from coding_agent.services import services
from coding_agent.tests.scene import Scene, scene
from coding_agent.tools.delegate import _description, _only_named_tools
from lemon_ai.testing import FakeToolCall, Turn
from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.bus import run_topic
from lemon_core.events import Completion, RunCompleted
from lemon_core.runs import RunRequest
from lemon_gateway.requests import EngineCompleted

pytestmark = pytest.mark.anyio


class AnsweringRouter:
    """A router whose runs end as the test says."""

    def __init__(self, here: Scene, end: Completion | None, status: Any = "accepted") -> None:
        self.here, self.end, self.status = here, end, status
        self.requests: list[RunRequest] = []
        self.aborted: list[str] = []
        self.came = anyio.Event()

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        self.requests.append(request)
        self.came.set()
        if self.end is not None and request.run_id is not None:
            self.here.runtime.bus.publish_event(
                run_topic(request.run_id), "run_completed", RunCompleted(completed=self.end)
            )
        return SubmitResult(self.status, request.run_id, "no room")

    async def abort_run(self, run_id: str, reason: str = "") -> None:
        self.aborted.append(run_id)
        end = Completion(ok=False, error="user_requested")
        self.here.runtime.bus.publish_event(
            run_topic(run_id), "run_completed", RunCompleted(completed=end)
        )


def asking(**arguments: Any) -> Turn:
    given = {"action": "run", "agent_id": "default", "prompt": "advise me", "async": False}
    return Turn(tool_calls=[FakeToolCall("agent", {**given, **arguments})], when="go")


async def test_another_agent_is_asked_through_the_router(tmp_path: Path) -> None:
    """Under this run's context, and in the same conversation the next time."""
    async with scene(tmp_path, asking(), asking(), asking(continue_session=False)) as here:
        end = Completion(ok=True, answer="do it", usage={"total_tokens": 7, "input": 7})
        router = AnsweringRouter(here, end)
        here.runtime.capabilities.register(ROUTER, router)
        for _ in range(3):
            here.server.enqueue(Turn(text="fine", when="do it"))
            live = await here.run("go")
            assert live.completed.answer == "fine"
        first, second, third = router.requests
        assert first.session_key is not None
        assert first.session_key.startswith("agent:default:delegate:agent:main:p")
        assert first.session_key.endswith(":thread:oracle")
        assert second.session_key == first.session_key != third.session_key
        assert first.execution_context is not None
        assert (first.origin, first.prompt, first.queue_mode) == ("node", "advise me", "collect")
        usage = live.completed.usage
        assert usage is not None
        assert usage["input"] == 27


async def test_an_answer_that_was_not_waited_for_comes_as_a_message(tmp_path: Path) -> None:
    turns = (
        asking(**{"async": True}),
        Turn(text="on we go", when="Task queued", gate="parent"),
        Turn(text="thanks", when=HEADLINE),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        router = AnsweringRouter(here, Completion(ok=True, answer="do it"))
        here.runtime.capabilities.register(ROUTER, router)
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await here.server.gate("parent").reached.wait()
            children = here.runtime.service(services).children
            (record,) = await children.all()
            if (child := children.living(record.id)) is not None:
                await child.ended.wait()
        here.server.gate("parent").open()
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert live.completed.answer == "thanks"
        assert "source: agent" in here.shown()[-1][1]


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        ({"agent_id": "nobody"}, "accepted", "there is no agent 'nobody'; configured: default"),
        ({}, "rejected", "error: no room"),
        ({}, "unavailable", "error: no room"),
    ],
)
async def test_what_goes_wrong_is_said(
    tmp_path: Path, arguments: dict[str, Any], status: str, problem: str
) -> None:
    async with scene(tmp_path, asking(**arguments), Turn(text="ok")) as here:
        here.runtime.capabilities.register(ROUTER, AnsweringRouter(here, None, status))
        live = await here.run("go")
        assert live.completed.ok
        assert problem in here.shown()[-1][1]


async def test_an_abort_reaches_the_other_agents_run(tmp_path: Path) -> None:
    async with scene(tmp_path, asking()) as here, anyio.create_task_group() as tasks:
        router = AnsweringRouter(here, None)
        here.runtime.capabilities.register(ROUTER, router)
        live = await here.start(tasks, "go")
        with anyio.fail_after(5):
            await router.came.wait()
        await here.executor.cancel(live.handle.control)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert router.aborted == [router.requests[0].run_id]
        (record,) = await here.runtime.service(services).children.all()
        assert record.status == "aborted"


def test_a_prompt_that_names_its_tools_gets_no_others() -> None:
    spec = _only_named_tools(ChildSpec("Use read and grep tools only to look.", "d"))
    assert spec.policy is not None
    assert spec.policy.allow == ("grep", "read")
    assert spec.prompt.endswith("Only these tools are yours: read, grep.")
    for prompt in ("use the hammer tool only", "look at the tools only", "use magic tools only"):
        same = ChildSpec(prompt, "d")
        assert _only_named_tools(same) is same


def test_a_description_is_short() -> None:
    assert _description(None, "a\n b") == "a b"
    assert _description(" x ", "prompt") == "x"
    assert len(_description(None, "y" * 500)) == 80


def test_roles_come_from_the_user_and_the_project(tmp_path: Path) -> None:
    agent, project = tmp_path / "agent", tmp_path / "project"
    (project / ".lemon").mkdir(parents=True)
    agent.mkdir()
    assert roles(agent, str(project)) == dict(BUILT_IN)
    mine = [{"id": "poet", "prompt": "Rhyme."}, {"id": "", "prompt": "x"}, 5, {"id": "y"}]
    (agent / "subagents.json").write_text(json.dumps(mine))
    (project / ".lemon/subagents.json").write_text('[{"id": "poet", "prompt": "Do not."}]')
    found = roles(agent, str(project))
    assert found["poet"] == "Do not."
    assert set(found) == {*BUILT_IN, "poet"}
    (project / ".lemon/subagents.json").write_text("{nonsense")
    assert roles(agent, str(project))["poet"] == "Rhyme."
