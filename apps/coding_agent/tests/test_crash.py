"""A killed process loses at most the entry in flight (specification coding_agent 3 and 11.5)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process

from coding_agent.tests.harness import pids_in
from coding_agent.tests.scene import Scene, scene, tool_turn
from lemon_ai.testing import Turn
from lemon_core.resume import ResumeToken

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def child(here: Scene) -> AsyncIterator[Process]:
    """A process of its own that runs a prompt against the same server and folder."""
    command = [
        sys.executable,
        "-m",
        "coding_agent.tests.crash_child",
        str(here.cwd.parent),
        here.server.base_url,
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(command, env=environ, stdout=None, stderr=None) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


def token_of(here: Scene) -> ResumeToken:
    (path,) = here.session_files
    return ResumeToken(engine="lemon", value=path.stem)


@pytest.mark.behaviour("coding_agent.5")
async def test_killed_while_the_model_answers(tmp_path: Path) -> None:
    """Everything but the answer in flight is there, and the conversation goes on."""
    held = Turn(text=["half ", "an answer"], gate="held", gate_after=1)
    turns = (tool_turn("write", path="a.txt", content="x"), held, Turn(text="on we go"))
    async with scene(tmp_path, *turns) as here:
        with anyio.fail_after(20):
            async with child(here) as process:
                await here.server.gate("held").reached.wait()
                process.kill()
                await process.wait()
        live = await here.run("go on", resume=token_of(here))
        assert live.completed.answer == "on we go"
        assert [role for role, _ in here.shown()][1:] == ["user", "assistant", "tool", "user"]
        assert (here.cwd / "a.txt").read_text() == "x"


@pytest.mark.behaviour("coding_agent.5")
async def test_killed_while_a_tool_runs(tmp_path: Path) -> None:
    """The call is there, and the model is told that nobody knows what it did."""
    command = "echo $$ > pid; echo > ready; exec sleep 300"
    async with scene(tmp_path, tool_turn("bash", command=command), Turn(text="ok")) as here:
        os.mkfifo(here.cwd / "ready")
        with anyio.fail_after(20):
            async with child(here) as process:
                await anyio.to_thread.run_sync((here.cwd / "ready").read_text)
                process.kill()
                await process.wait()
        # Nobody is left who could have ended it.
        for pid in pids_in(here.cwd / "pid"):
            os.kill(pid, signal.SIGKILL)
        await here.run("go on", resume=token_of(here))
        assert here.shown()[1:] == [
            ("user", "do it"),
            ("assistant", ""),
            ("tool", "interrupted, outcome unknown"),
            ("user", "go on"),
        ]
