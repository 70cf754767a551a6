"""What a run may do and spend (specification coding_agent 6, 11.11, 11.26 and 11.27)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from coding_agent.services import services
from coding_agent.tests.scene import (
    models_with,
    scene,
    tool_turn,
)
from lemon_ai.testing import FakeToolCall, Turn
from lemon_ai.types import ModelCost
from lemon_core.execution_context import Limits
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio


@pytest.mark.behaviour("coding_agent.11")
async def test_a_tool_that_is_not_permitted_is_neither_offered_nor_run(tmp_path: Path) -> None:
    calls = [
        FakeToolCall("write", {"path": "a", "content": "x"}),
        FakeToolCall("edit", {"path": "a", "old_text": "x", "new_text": "y"}),
        FakeToolCall("hashline_edit", {"path": "a", "edits": [{"op": "append", "lines": ["x"]}]}),
        FakeToolCall("patch", {"patch_text": "*** Begin Patch\n*** Add File: a\n*** End Patch"}),
        FakeToolCall("bash", {"command": "touch a"}),
    ]
    async with scene(tmp_path, Turn(tool_calls=calls), Turn(text="ok")) as here:
        live = await here.run(policy=ToolPolicy.of_profile("safe_mode"))
        assert live.completed.ok
        assert os.listdir(here.cwd) == []
        names = [tool["function"]["name"] for tool in here.server.requests[0].body["tools"]]
        assert names[:5] == ["read", "ls", "find", "grep", "todo"]
        assert not {"write", "edit", "hashline_edit", "patch", "bash", "jobs"} & set(names)
        ends = [a for a in live.actions if a.phase == "completed"]
        assert [a.ok for a in ends] == [False] * 5


async def test_the_requests_policy_narrows_the_contexts(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="ok")) as here:
        request = replace(here.request(), tool_policy=ToolPolicy.parse({"deny": ["bash"]}))
        live = await here.prepare(request)
        await live.play()
        names = [tool["function"]["name"] for tool in here.server.requests[0].body["tools"]]
        assert "bash" not in names


@pytest.mark.behaviour("coding_agent.11")
async def test_without_anybody_to_ask_an_approval_is_refused(tmp_path: Path) -> None:
    turn = tool_turn("bash", command="touch ran")
    async with scene(tmp_path, turn, Turn(text="ok")) as here:
        live = await here.run(policy=ToolPolicy.parse({"require_approval": ["bash"]}))
        assert os.listdir(here.cwd) == []
        detail = live.actions[-1].action.detail
        assert detail is not None
        assert detail["result_meta"] == {"reason": "approval_error"}
        assert live.actions[-1].ok is False


@pytest.mark.behaviour("coding_agent.26")
async def test_nothing_outside_the_roots_is_reached(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through links too; and what a run keeps lies in the agent's folder alone."""
    temporary = tmp_path_factory.mktemp("system")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "secret.txt").write_text("secret")
    outside = str(tmp_path / "secret.txt")
    calls = [
        FakeToolCall("read", {"path": outside}),
        FakeToolCall("read", {"path": "link/secret.txt"}),
        FakeToolCall("write", {"path": "link/new.txt", "content": "x"}),
        FakeToolCall("edit", {"path": outside, "old_text": "s", "new_text": "x"}),
        FakeToolCall("ls", {"path": "link"}),
        FakeToolCall("grep", {"pattern": "secret", "path": "../"}),
        FakeToolCall("grep", {"pattern": "secret"}),
        FakeToolCall("bash", {"command": "seq 1 3000"}),
    ]
    async with scene(tmp_path, Turn(tool_calls=calls), Turn(text="ok")) as here:
        (here.cwd / "link").symlink_to(tmp_path)
        await here.run()
        results = [text for role, text in here.shown() if role == "tool"]
        assert all("outside the workspace" in text for text in results[:6])
        assert results[6] == "Found 0 matches."
        assert (tmp_path / "secret.txt").read_text() == "secret"
        assert sorted(os.listdir(tmp_path)) == ["agent", "secret.txt", "work"]
        (spilled,) = here.agent_dir.glob("spill/*/bash/*.txt")
        assert f"Full output saved to: {spilled}]" in results[7]
        assert os.listdir(temporary) == []


@pytest.mark.behaviour("coding_agent.27")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_tool_calls=1), "max_tool_calls_exhausted"),
        (Limits(max_tokens=5), "max_tokens_exhausted"),
    ],
)
async def test_a_spent_limit_ends_the_run_before_the_next_call(
    tmp_path: Path, limits: Limits, code: str
) -> None:
    async with scene(tmp_path, tool_turn("ls"), Turn(text="next")) as here:
        live = await here.run(limits=limits)
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == code
        assert "I stopped here" in str(error["message"])
        assert len(here.server.requests) == 1
        again = await here.run("go on", resume=live.completed.resume)
        assert again.completed.answer == "next"


@pytest.mark.behaviour("coding_agent.27")
async def test_a_spent_price_ends_the_run_as_well(tmp_path: Path) -> None:
    async with scene(tmp_path, tool_turn("ls"), Turn(text="next")) as here:
        priced = ModelCost(input=1_000_000)
        here.runtime.service(services).models = await models_with(here, {"cost": priced})
        live = await here.run(limits=Limits(max_cost_usd=5))
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "max_cost_usd_exhausted"
        assert live.completed.usage is not None
        assert live.completed.usage["cost_usd"] == 10.0
        again = await here.run("go on", resume=live.completed.resume)
        assert again.completed.answer == "next"


@pytest.mark.behaviour("coding_agent.27")
async def test_five_equal_failures_end_the_run(tmp_path: Path) -> None:
    turns = [tool_turn("read", path="none")] * 5
    async with scene(tmp_path, *turns, Turn(text="next")) as here:
        live = await here.run()
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "loop_detected"
        again = await here.run("go on", resume=live.completed.resume)
        assert again.completed.answer == "next"
