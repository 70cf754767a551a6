"""A router process that is killed, and what the next one makes of it (specification 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from lemon_core.bus import Bus
from lemon_core.clock import SystemClock
from lemon_core.store import RunStore, StoreSettings, open_store
from lemon_router.router import Router
from lemon_router.tests.rig import make_router
from lemon_router.tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


async def kill_at(point: str, home: Path) -> None:
    """Start a router in `home` and kill it when it has reached `point`."""
    arguments = [sys.executable, "-m", "lemon_router.tests.victim", str(home), point]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process(arguments, env=env, stderr=subprocess.DEVNULL) as victim:
        assert victim.stdout is not None
        assert (await TextReceiveStream(victim.stdout).receive()).strip() == point
        victim.kill()
        await victim.wait()


@dataclass
class After:
    """What the next process did: how each admitted run ended, and what it executed, in order."""

    states: dict[str, str] = field(default_factory=dict)
    errors: dict[str, object] = field(default_factory=dict)
    executed: list[str] = field(default_factory=list)


async def next_life(home: Path) -> After:
    """A new process on the same store, with a gateway that answers everything at once."""
    clock, after = SystemClock(), After()
    async with (
        open_store(StoreSettings("sqlite", home / "store"), clock) as store,
        anyio.create_task_group() as tasks,
    ):
        runs = RunStore(store, clock)
        engine = ScriptedEngine(Bus())
        router = make_router(engine, store, engine.bus, clock, home, tasks, runs=runs)
        await router.recover(runs)
        await answered(router, engine, after)
        for record in await router.records():
            after.states[record.run_id] = record.state
            after.errors[record.run_id] = record.error
            begun = await runs.begun(record.run_id)
            assert begun is None or record.run_id not in engine.submitted, "executed twice"
        tasks.cancel_scope.cancel()
    return after


async def answered(router: Router, engine: ScriptedEngine, after: After) -> None:
    """Everything that is open comes to its end."""
    while router.live_records():
        for run_id in list(engine.runs):
            if engine.runs[run_id].terminal is None:
                after.executed.append(engine.runs[run_id].command.prompt)
                engine.complete(run_id)
        await anyio.lowlevel.checkpoint()


@pytest.mark.behaviour("lemon_router.39")
@pytest.mark.parametrize(
    ("point", "states", "executed"),
    [
        ("accepted", {"run_1": "completed"}, ["one"]),
        ("submitted", {"run_1": "completed"}, ["one"]),
        ("begun", {"run_1": "failed"}, []),
        (
            "queued",
            {"run_1": "failed", "run_2": "absorbed", "run_3": "completed"},
            ["two\nthree"],
        ),
        (
            "joined",
            {"run_1": "failed", "run_2": "completed", "run_3": "completed"},
            ["two", "three"],
        ),
        ("steered", {"run_1": "completed", "run_2": "absorbed"}, []),
        (
            "ended",
            {"run_1": "completed", "run_2": "absorbed", "run_3": "completed"},
            ["two\nthree"],
        ),
    ],
)
async def test_every_message_ends_once_wherever_its_router_was_killed(
    point: str, states: dict[str, str], executed: list[str], tmp_path: Path
) -> None:
    with anyio.fail_after(30):
        await kill_at(point, tmp_path)
        after = await next_life(tmp_path)
        assert (after.states, after.executed) == (states, executed)
        if states["run_1"] == "failed":
            assert after.errors["run_1"] == "run_lost"
        # And once more: nothing is left to be done.
        again = await next_life(tmp_path)
        assert (again.states, again.executed) == (states, [])
