"""A gateway process that is killed, and what the next one knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from lemon_core.bridges import RunSnapshot
from lemon_core.clock import SystemClock
from lemon_core.store import StoreSettings, open_store
from lemon_gateway.tests.fakes import (
    SESSION,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
)
from lemon_gateway.tests.victim import RUN_ID


async def kill_at(point: str, folder: Path) -> None:
    """Start a gateway on the store in `folder` and kill it when it has reached `point`."""
    arguments = [sys.executable, "-m", "lemon_gateway.tests.victim", str(folder), point]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(arguments, env=env, stderr=subprocess.DEVNULL) as victim:
        assert victim.stdout is not None
        assert (await TextReceiveStream(victim.stdout).receive()).strip() == point
        victim.kill()
        await victim.wait()


@pytest.mark.behaviour("lemon_gateway.38", "lemon_gateway.102", "lemon_gateway.104")
@pytest.mark.parametrize("point", ["start", "delta", "engine_action", "end"])
async def test_a_run_with_a_begin_mark_is_lost_and_starts_nothing(
    point: str, tmp_path: Path
) -> None:
    """Specification lemon_gateway 13.38: TERMINAL with run_lost after the restart."""
    clock = SystemClock()
    with anyio.fail_after(20):
        await kill_at(point, tmp_path)
        async with open_store(StoreSettings("sqlite", tmp_path), clock) as store:
            executor = ScriptedExecutor(answer_hello)
            async with running_gateway(executor, clock=clock, store=store) as gateway:
                snapshot = await gateway.runtime.get_run(RUN_ID)
                assert isinstance(snapshot, RunSnapshot)
                assert snapshot.state == "terminal"
                assert snapshot.terminal is not None
                assert (snapshot.terminal.ok, snapshot.terminal.error) == (False, "run_lost")
                assert [item async for item in gateway.runtime.subscribe(RUN_ID)] == [snapshot]
                receipt = await gateway.runtime.submit_execution(command(RUN_ID))
                assert receipt.status == "already_completed"
                # The session itself goes on.
                assert await gateway.chat_states.get(SESSION) is None
                await gateway.runtime.submit_execution(command("run_next"))
                assert (await gateway.end("run_next")).ok
                assert executor.order == ["run_next"]
                # The lock of the conversation died with the process: nobody waited for it.
                assert gateway.runtime.lock.waits.begun == 0
                assert gateway.runtime.lock.counts() == (0, 0)


@pytest.mark.behaviour("lemon_gateway.38")
async def test_a_run_without_a_begin_mark_may_be_submitted_again(tmp_path: Path) -> None:
    """Specification lemon_gateway 13.38: before the mark it may be submitted again."""
    clock = SystemClock()
    with anyio.fail_after(20):
        await kill_at("begin", tmp_path)
        async with open_store(StoreSettings("sqlite", tmp_path), clock) as store:
            executor = ScriptedExecutor(answer_hello)
            async with running_gateway(executor, clock=clock, store=store) as gateway:
                assert await gateway.runtime.get_run(RUN_ID) is None
                receipt = await gateway.runtime.submit_execution(command(RUN_ID))
                assert receipt.status == "accepted"
                assert (await gateway.end(RUN_ID)).answer == "hello"
