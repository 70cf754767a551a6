"""A restart in the middle of a tool call, as the next run of the conversation sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coding_agent.tests.scene import Scene, scene, stored, tool_turn
from lemon_ai.testing import Turn
from lemon_core.resume import ResumeToken
from lemon_gateway.requests import EngineCompleted

pytestmark = pytest.mark.anyio


async def cut_off(here: Scene) -> ResumeToken:
    """A conversation whose process ended while its first tool ran."""
    resume = (await here.run("go")).completed.resume
    (path,) = here.session_files
    header, prompt, call, *_ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + prompt + call)
    assert resume is not None
    return resume


@pytest.mark.behaviour("coding_agent.124")
async def test_a_read_only_call_is_made_again_and_the_reply_arrives(tmp_path: Path) -> None:
    read = tool_turn("read", path="a.txt")
    turns = (read, Turn(text="lost"), read, Turn(text="It says hi."))
    async with scene(tmp_path, *turns) as here:
        (here.cwd / "a.txt").write_text("hi")
        live = await here.run("what does it say?", resume=await cut_off(here))
        assert here.shown(2)[3] == (
            "tool",
            "interrupted, outcome unknown; it changes nothing, so it can simply be called again",
        )
        assert live.completed.answer == "It says hi."
        assert len([m for m in live.messages if isinstance(m, EngineCompleted)]) == 1


@pytest.mark.behaviour("coding_agent.124")
async def test_a_writing_call_is_told_as_unknown_and_not_repeated(tmp_path: Path) -> None:
    turns = (
        tool_turn("bash", command="echo x >> log"),
        Turn(text="lost"),
        Turn(text="The command was interrupted; I do not know whether it ran."),
    )
    async with scene(tmp_path, *turns) as here:
        resume = await cut_off(here)
        live = await here.run("well?", resume=resume)
        assert here.shown(2)[3] == ("tool", "interrupted, outcome unknown")
        assert (here.cwd / "log").read_text() == "x\n"
        assert live.completed.answer == "The command was interrupted; I do not know whether it ran."
        # What stood in for the result was never said by anybody, and is not stored.
        assert [m["role"] for m in stored(here)] == ["user", "assistant", "user", "assistant"]
        again = await here.executor.steer(live.handle.control, "late")
        assert again == "error"
