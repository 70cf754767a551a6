"""How conversations at work are (specification coding_agent 2 and 11.9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from coding_agent.app import HEALTH
from coding_agent.health import SessionsHealth
from coding_agent.services import services
from coding_agent.tests.scene import Scene, models_with, scene, tool_turn
from lemon_ai.testing import FakeUsage, Turn
from lemon_core.config.model import Compaction

pytestmark = pytest.mark.anyio


def health(here: Scene) -> SessionsHealth:
    found = here.runtime.capabilities.get(HEALTH)
    assert isinstance(found, SessionsHealth)
    return found


async def test_a_conversation_with_failing_tools_is_degraded(tmp_path: Path) -> None:
    turns = (
        tool_turn("ls"),
        tool_turn("read", path="missing"),
        Turn(text=["a", "b"], gate="held", gate_after=1),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        assert health(here).health_summary() == "no_sessions"
        live = await here.start(tasks)
        await live.until_delta("a")
        (found,) = health(here).health_all()
        assert (found.status, found.tool_calls, found.tool_errors) == ("degraded", 2, 1)
        assert health(here).health_check(found.session_id) == found
        assert health(here).health_check("nobody") is None
        assert health(here).status() == {
            "status": "degraded",
            "sessions": 1,
            "unhealthy": 0,
            "degraded": 1,
            "healthy": 0,
        }
        here.server.gate("held").open()
    assert here.runtime.capabilities.get(HEALTH) is None


async def test_the_worst_comes_first_and_an_agent_that_is_gone_is_unhealthy(
    tmp_path: Path,
) -> None:
    turns = [Turn(text=["a", "b"], gate="held", gate_after=1) for _ in range(2)]
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        for key in ("agent:default:main", "agent:other:main"):
            live = await here.start(tasks, session_key=key)
            await live.until_delta("a")
        assert health(here).health_summary() == "healthy"
        runs = here.runtime.service(services).children.live.all()
        runs[1].is_alive = lambda: False
        found = health(here).health_all()
        assert [each.status for each in found] == ["unhealthy", "healthy"]
        assert found[0].run_id == runs[1].run_id
        assert health(here).health_summary() == "unhealthy"
        here.server.gate("held").open()


@pytest.mark.behaviour("coding_agent.9")
async def test_a_conversation_that_is_being_shortened_answers(tmp_path: Path) -> None:
    turns = (
        Turn(text="word " * 4_000, usage=FakeUsage(input=22_000, output=1)),
        Turn(text="They talked.", gate="summary"),
        Turn(text="second answer"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        shared = here.runtime.service(services)
        shared.models = await models_with(here, {"context_window": 24_000})
        keep = Compaction(reserve_tokens=2_400, keep_recent_tokens=1_000)
        shared.settings = replace(shared.settings, compaction=keep)
        resume = (await here.run("first question")).completed.resume
        assert resume is not None
        live = await here.start(tasks, "second question", resume=resume)
        with anyio.fail_after(5):
            await here.server.gate("summary").reached.wait()
        found = health(here).health_check(resume.value)
        assert found is not None
        assert found.status == "healthy"
        here.server.gate("summary").open()
    assert live.completed.answer == "second answer"
