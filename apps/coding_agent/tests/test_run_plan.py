"""What a run needs before its first model call (specification coding_agent 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coding_agent.errors import EmptyPrompt, NoWorkingDirectory, OutsideWorkspace
from coding_agent.run_plan import (
    RunPlan,
    make_plan,
    request_headers,
    user_message,
    working_directory,
)
from coding_agent.run_request import agent_id
from coding_agent.services import services
from coding_agent.tests.scene import Scene, scene
from lemon_agent import Budget
from lemon_ai import ImageContent, TextContent
from lemon_core.context_parts import AuthorityError
from lemon_core.execution_context import Limits
from lemon_core.runs import Image
from lemon_gateway.executor import RunOptions
from lemon_gateway.requests import ExecutionRequest

pytestmark = pytest.mark.anyio


async def plan_of(here: Scene, request: ExecutionRequest) -> RunPlan:
    options = RunOptions(request.run_id, str(here.cwd))
    return await make_plan(request, options, here.runtime.service(services))


def test_images_go_with_the_text() -> None:
    images: Sequence[Image] = [
        Image(data="AAAA", mime_type="image/jpg"),
        Image(data="BBBB", mime_type="image/tiff"),
    ]
    assert user_message("look", images).content == [
        TextContent(text="look"),
        ImageContent(data="AAAA", mime_type="image/jpeg"),
        TextContent(text="[An image of type image/tiff was left out.]"),
    ]
    assert user_message(" ", images[:1]).content == [
        ImageContent(data="AAAA", mime_type="image/jpeg")
    ]
    assert user_message("half \ud800", ()).content == "half ?"
    with pytest.raises(EmptyPrompt):
        user_message(" \n", ())


@pytest.mark.behaviour("coding_agent.26")
async def test_the_working_directory_is_real_and_inside(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        request = here.request()
        (tmp_path / "link").symlink_to(here.cwd)
        (here.cwd / "file").touch()
        (here.cwd / "sub").mkdir()
        assert working_directory(request, RunOptions("r", str(tmp_path / "link"))) == str(here.cwd)
        assert working_directory(request, RunOptions("r", "")) == str(here.cwd)
        in_sub = replace(request, cwd=str(here.cwd / "sub"))
        assert working_directory(in_sub, RunOptions("r", "")) == str(here.cwd / "sub")
        for name in ("file", "gone"):
            with pytest.raises(NoWorkingDirectory, match=name):
                working_directory(request, RunOptions("r", str(here.cwd / name)))
        with pytest.raises(OutsideWorkspace, match="outside the workspace"):
            working_directory(request, RunOptions("r", str(tmp_path)))


async def test_headers_name_run_session_and_agent(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        request = here.request(session_key="agent:helper:main")
        assert request_headers(request) == {
            "x-lemon-run-id": request.run_id,
            "x-lemon-session-key": "agent:helper:main",
            "x-lemon-agent-id": "helper",
        }
        assert agent_id(here.request(meta={"agent_id": " own "})) == "own"
        assert agent_id(here.request(session_key="odd\nkey")) == "default"
        odd = request_headers(here.request(session_key="odd\nkéy"))
        assert odd["x-lemon-session-key"] == "odd?k?y"


async def test_limits_and_thinking_level_reach_the_loop(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        limits = Limits(max_tokens=5, max_cost_usd=0.5, max_tool_calls=2)
        plan = await plan_of(here, here.request(limits=limits))
        assert plan.config.budget == Budget(5, 0.5, 2)
        assert plan.config.max_tool_turns is None
        assert plan.config.stream_options.reasoning == "medium"
        assert plan.config.stream_options.session_id == plan.session.id
        levels = {"off": False, "high": "high", "absurd": None}
        for level, expected in levels.items():
            plan = await plan_of(here, here.request(meta={"thinking_level": level}))
            assert plan.config.stream_options.reasoning == expected


@pytest.mark.behaviour("coding_agent.25")
async def test_what_is_made_once_is_the_same_for_every_run(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        one, other = await plan_of(here, here.request()), await plan_of(here, here.request())
        assert one.config.tool_schema_snapshot is other.config.tool_schema_snapshot
        assert one.system_prompt == other.system_prompt
        assert one.session.id != other.session.id


async def test_an_expired_context_starts_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        request = here.request()
        validity = request.execution_context.validity.model_copy(update={"expires_at_ms": 1})
        context = request.execution_context.model_copy(update={"validity": validity})
        with pytest.raises(AuthorityError, match="expired"):
            await plan_of(here, replace(request, execution_context=context))
