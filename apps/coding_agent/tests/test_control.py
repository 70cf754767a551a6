"""Cancelling, steering and redirecting a run (specification coding_agent 1, 11.2 and 11.3)."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
import pytest

from coding_agent.services import Models, services
from coding_agent.tests.harness import lives, pids_in
from coding_agent.tests.scene import (
    phases,
    scene,
    stored,
    tool_runs,
    tool_turn,
)
from lemon_agent.runtime import ModelChoice
from lemon_ai.testing import FakeToolCall, Turn
from lemon_gateway.executor import RunOptions, RunSink
from lemon_gateway.requests import EngineCompleted, EngineDelta, SinkMessage

pytestmark = pytest.mark.anyio

SLEEP = "echo working; echo $$ > pid; sleep 300 & echo $! >> pid; echo > ready; wait"


@pytest.mark.behaviour("coding_agent.2")
async def test_cancel_before_the_start(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="never")) as here:
        live = await here.prepare(here.request())
        await here.executor.cancel(live.handle.control)
        await here.executor.cancel(live.handle.control)
        await live.play()
        assert live.messages == [live.completed]
        assert (live.completed.ok, live.completed.error) == (False, "Cancelled by user")
        assert here.server.requests == []
        assert here.session_files == []


@pytest.mark.behaviour("coding_agent.2")
async def test_cancel_while_the_model_is_being_chosen(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, anyio.create_task_group() as tasks:
        asked = anyio.Event()

        class Slow:
            async def choose_model(self, spec: str | None = None) -> ModelChoice:
                asked.set()
                await anyio.sleep_forever()
                raise AssertionError

        shared = here.runtime.service(services)
        shared.models = cast(Models, Slow())
        live = await here.start(tasks)
        with anyio.fail_after(5):
            await asked.wait()
        assert await here.executor.steer(live.handle.control, "hurry") == "ok"
        await here.executor.cancel(live.handle.control)
        end = await live.until(lambda m: isinstance(m, EngineCompleted))
        assert end == live.completed
        assert live.completed.error == "Cancelled by user"


@pytest.mark.behaviour("coding_agent.2")
async def test_cancel_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    turns = (
        tool_turn("ls"),
        Turn(text=["so ", "far ", "so good"], gate="held", gate_after=2),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks)
        await live.until_delta("far ")
        await here.executor.cancel(live.handle.control)
        await here.executor.cancel(live.handle.control)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        end = live.completed
        assert (end.ok, end.error, end.answer) == (False, "Cancelled by user", "so far ")
        assert end.usage is not None
        assert end.usage["input"] == 10
        with anyio.fail_after(5):
            await here.server.wait_idle()
        assert stored(here)[-1]["stop_reason"] == "aborted"


@pytest.mark.behaviour("coding_agent.2")
async def test_cancel_in_the_middle_of_a_tool(tmp_path: Path) -> None:
    """The processes are gone, what happened is kept, and the conversation can go on."""
    turns = (
        Turn(tool_calls=[FakeToolCall("bash", {"command": SLEEP}), FakeToolCall("bash")]),
        Turn(text="again"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        os.mkfifo(here.cwd / "ready")
        live = await here.start(tasks)
        await tool_runs(here)
        await here.executor.cancel(live.handle.control)
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert not any(map(lives, pids_in(here.cwd / "pid")))
        assert live.completed.error == "Cancelled by user"
        assert live.completed.usage is not None
        results = [m["content"][0]["text"] for m in stored(here) if m["role"] == "tool_result"]
        assert results == ["interrupted, outcome unknown", "not started"]
        assert phases(live)[-1][1:] == ("completed", False)

        await here.executor.cancel(live.handle.control)
        assert len([m for m in live.messages if isinstance(m, EngineCompleted)]) == 1
        again = await here.run("go on", resume=live.completed.resume)
        assert again.completed.answer == "again"


@pytest.mark.behaviour("coding_agent.2")
async def test_a_cancelled_task_leaves_nothing_behind_either(tmp_path: Path) -> None:
    """The gateway stops to await the run: it ends the same way, within its task."""
    turn = Turn(tool_calls=[FakeToolCall("bash", {"command": SLEEP})])
    async with scene(tmp_path, turn) as here:
        os.mkfifo(here.cwd / "ready")
        live = await here.prepare(here.request())
        assert live.handle.done is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live.play)
            await tool_runs(here)
            tasks.cancel_scope.cancel()
        live.messages += await live.sink.receive_batch()
        assert not any(map(lives, pids_in(here.cwd / "pid")))
        assert live.completed.error == "Cancelled: task_cancelled"
        assert stored(here)[-1]["content"][0]["text"] == "interrupted, outcome unknown"
        await here.executor.cancel(live.handle.control)
        live.sink.end()
        assert await live.sink.receive_batch() == []


async def test_a_reader_that_has_gone_does_not_keep_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads and the sink is full: the run ends within its time all the same."""
    monkeypatch.setattr("coding_agent.runner.LAST_WORDS_S", 0.05)
    full = anyio.Event()

    class FullSink(RunSink):
        async def send(self, message: SinkMessage) -> None:
            if isinstance(message, EngineDelta):
                full.set()
                await anyio.sleep_forever()
            await super().send(message)

    async with scene(tmp_path, Turn(text="one two")) as here:
        options = RunOptions("r", str(here.cwd))
        handle = await here.executor.start_run(here.request(), options, FullSink())
        assert handle.done is not None
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_await, handle.done)
                await full.wait()
                tasks.cancel_scope.cancel()
        assert stored(here)[0]["role"] == "user"


async def _await(done: Awaitable[object]) -> None:
    await done


@pytest.mark.behaviour("coding_agent.3")
async def test_a_steer_is_read_after_the_current_tool(tmp_path: Path) -> None:
    turns = (tool_turn("bash", command="echo > ready; read x < go; echo $x"), Turn(text="ok"))
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        os.mkfifo(here.cwd / "ready")
        os.mkfifo(here.cwd / "go")
        live = await here.start(tasks)
        await tool_runs(here)
        assert await here.executor.steer(live.handle.control, "use tabs") == "ok"
        await anyio.to_thread.run_sync((here.cwd / "go").write_text, "went\n")
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert here.shown()[-2:] == [("tool", "went"), ("user", "use tabs")]
        assert len(here.server.requests) == 2
        assert [m["role"] for m in stored(here)][-3:] == ["tool_result", "user", "assistant"]


@pytest.mark.behaviour("coding_agent.3")
async def test_a_redirect_gives_up_only_the_model_call(tmp_path: Path) -> None:
    turns = (
        tool_turn("bash", command="echo kept"),
        Turn(text=["wrong ", "way"], gate="held", gate_after=1),
        Turn(text="right"),
    )
    async with scene(tmp_path, *turns) as here, anyio.create_task_group() as tasks:
        live = await here.start(tasks)
        await live.until_delta("wrong ")
        assert await here.executor.redirect(live.handle.control, "the other way") == "ok"
        await live.until(lambda m: isinstance(m, EngineCompleted))
        assert (live.completed.ok, live.completed.answer) == (True, "right")
        assert here.shown()[-2:] == [("tool", "kept"), ("user", "the other way")]


@pytest.mark.behaviour("coding_agent.3")
async def test_after_the_completion_both_are_refused(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="hi")) as here:
        live = await here.run()
        assert await here.executor.steer(live.handle.control, "x") == "error"
        assert await here.executor.redirect(live.handle.control, "x") == "error"
        assert await here.executor.steer("no control", "x") == "unsupported"
        assert await here.executor.redirect(None, "x") == "unsupported"
        await here.executor.cancel("no control")


async def test_what_is_said_before_the_first_call_is_read_with_it(tmp_path: Path) -> None:
    async with scene(tmp_path, Turn(text="ok"), Turn(text="and ok")) as here:
        live = await here.prepare(here.request("first"))
        assert await here.executor.steer(live.handle.control, "second \ud800") == "ok"
        assert await here.executor.redirect(live.handle.control, "third") == "ok"
        await live.play()
        assert here.shown(0)[1:] == [("user", "first"), ("user", "second ?")]
        assert here.shown(1)[-1] == ("user", "third")
