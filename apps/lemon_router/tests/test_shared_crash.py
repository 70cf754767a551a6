"""One of several router processes is killed, and another goes on with its session (ruling 16)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_router.tests.rig import SESSION
from lemon_router.tests.shared import OneAtATime, SharedRouter, shared_router

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def victim_at(point: str, home: Path, url: str) -> AsyncIterator[Process]:
    """A router process that has reached `point`."""
    arguments = [sys.executable, "-m", "lemon_router.tests.shared_victim", str(home), url, point]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(arguments, env=env, stderr=subprocess.DEVNULL) as victim:
        assert victim.stdout is not None
        assert (await TextReceiveStream(victim.stdout).receive()).strip() == point
        yield victim
        if victim.returncode is None:
            victim.kill()


async def ends(router: SharedRouter, engine: OneAtATime) -> dict[str, tuple[str, object]]:
    """How each message ended, with a gateway that answers everything at once."""
    while router.router.live_records():
        for run_id, run in list(engine.runs.items()):
            if run.terminal is None:
                engine.complete(run_id)
        await anyio.lowlevel.checkpoint()
    records = await router.router.records()
    return {record.run_id: (record.state, record.error) for record in records}


@pytest.mark.behaviour("lemon_router.110")
@pytest.mark.parametrize(
    ("point", "run_1", "executed"),
    [
        ("submitted", ("completed", None), ["run_1", "run_2", "run_3"]),
        ("begun", ("failed", "run_lost"), ["run_2", "run_3"]),
    ],
)
async def test_a_session_leaves_a_killed_router_and_nothing_of_it_runs_twice_or_beside(
    point: str, run_1: tuple[str, object], executed: list[str], url: str, tmp_path: Path
) -> None:
    engine = OneAtATime(Bus())
    with anyio.fail_after(30):
        async with shared_router(url, "heir", engine, tmp_path, SystemClock()) as heir:
            async with victim_at(point, tmp_path, url) as victim:
                told = await heir.submit("run_3")
                # As long as it lives the session is its.
                assert told.detail == {"disposition": "queued", "position": 1}
                assert await heir.router.active_run(SESSION) is None
                victim.kill()
                await victim.wait()
            while len(heir.router.live_records()) < 2:
                await anyio.lowlevel.checkpoint()
            assert await ends(heir, engine) == {
                "run_1": run_1,
                "run_2": ("completed", None),
                "run_3": ("completed", None),
            }
            assert engine.submitted == executed


@pytest.mark.behaviour("lemon_router.110")
async def test_a_process_that_only_stands_still_keeps_its_session(url: str, tmp_path: Path) -> None:
    """Ownership never moves because of age."""
    engine = OneAtATime(Bus())
    with anyio.fail_after(30):
        async with (
            shared_router(url, "heir", engine, tmp_path, SystemClock()) as heir,
            victim_at("begun", tmp_path, url),
        ):
            await heir.submit("run_3")
            while len(heir.asked) < 3:
                await anyio.lowlevel.checkpoint()
            await heir.router.others.adopt()
            assert engine.submitted == []
            assert [r.run_id for r in heir.router.live_records()] == ["run_3"]
