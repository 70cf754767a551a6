"""Kernels that outlive a call (specification coding_agent 7, 11.18)."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from coding_agent.kernels import KernelKey, Kernels, NoKernel
from coding_agent.tests.harness import lives, pids_in
from coding_agent.tests.kernel_tools import Printed, cell, launch_in
from lemon_agent import ToolError
from lemon_core.config.tools import ExecuteCode
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

PID = "import os\nprint(os.getpid())"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def kernels(clock: FakeClock) -> AsyncIterator[Kernels]:
    kernels = Kernels(clock)
    async with kernels.running():
        yield kernels


def settings(**changes: Any) -> ExecuteCode:
    return ExecuteCode(enabled=True, kernel_mode="session", **changes)


def key(folder: Path, session_id: str = "s1", agent_id: str = "default") -> KernelKey:
    return KernelKey.of(session_id, agent_id, sys.executable, launch_in(folder))


async def pid_of(kernels: Kernels, at: KernelKey, **changes: Any) -> int:
    """The process that runs scripts for this key now."""
    printed = Printed()
    with anyio.fail_after(10):
        await kernels.run_kept(
            at, cell(PID, printed), settings(**changes), session_key=at.session_id
        )
    return int(printed.data)


async def gone(pid: int) -> None:
    with anyio.fail_after(5):
        while lives(pid):
            await anyio.lowlevel.checkpoint()


async def test_only_what_would_start_the_same_shares_a_kernel(
    kernels: Kernels, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    keys = [
        key(tmp_path),
        key(tmp_path, "s2"),
        key(tmp_path, agent_id="reviewer"),
        key(other),
    ]
    first = [await pid_of(kernels, one) for one in keys]
    assert len(set(first)) == len(keys)
    assert [await pid_of(kernels, one) for one in keys] == first


async def test_an_idle_kernel_ends_after_its_time_and_not_before(
    kernels: Kernels, clock: FakeClock, tmp_path: Path
) -> None:
    pid = await pid_of(kernels, key(tmp_path), kernel_idle_timeout_ms=10_000)
    await anyio.wait_all_tasks_blocked()
    await clock.advance(9_000)
    assert await pid_of(kernels, key(tmp_path), kernel_idle_timeout_ms=10_000) == pid
    await anyio.wait_all_tasks_blocked()
    await clock.advance(9_000)
    assert lives(pid)
    await clock.advance(1_000)
    await gone(pid)
    assert kernels.kept_count == 0


async def test_the_kernel_that_was_idle_longest_makes_room(
    kernels: Kernels, clock: FakeClock, tmp_path: Path
) -> None:
    pids = []
    for name in ("a", "b"):
        pids.append(await pid_of(kernels, key(tmp_path, name), max_live_kernels=2))
        await clock.advance(1)
    await pid_of(kernels, key(tmp_path, "a"), max_live_kernels=2)
    await pid_of(kernels, key(tmp_path, "c"), max_live_kernels=2)
    assert [lives(pid) for pid in pids] == [True, False]
    assert kernels.kept_count == 2


async def busy(kernels: Kernels, at: KernelKey, begun: Path, until: Path) -> None:
    """A script that says that it runs and waits for a word."""
    script = f"open({str(begun)!r}, 'w').write('x')\nopen({str(until)!r}).read()"
    await kernels.run_kept(at, cell(script), settings(), session_key=at.session_id)


async def test_a_kernel_at_work_makes_no_room(kernels: Kernels, tmp_path: Path) -> None:
    begun, until = pipes(tmp_path)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy, kernels, key(tmp_path, "a"), begun, until)
            await anyio.to_thread.run_sync(begun.read_text, abandon_on_cancel=True)
            with pytest.raises(NoKernel) as refused:
                await pid_of(kernels, key(tmp_path, "b"), max_live_kernels=1)
            assert refused.value.reason == "capacity_exhausted"
            await anyio.to_thread.run_sync(until.write_text, "x")


async def test_scripts_wait_for_their_turn_in_order_and_not_too_many(
    kernels: Kernels, tmp_path: Path
) -> None:
    begun, until = pipes(tmp_path)
    order = tmp_path / "order"
    at = key(tmp_path)

    async def add(number: int) -> None:
        script = f"open({str(order)!r}, 'a').write('{number}')"
        await kernels.run_kept(at, cell(script), settings(), session_key=at.session_id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy, kernels, at, begun, until)
            await anyio.to_thread.run_sync(begun.read_text, abandon_on_cancel=True)
            for number in range(3):
                tasks.start_soon(add, number)
                await anyio.lowlevel.checkpoint()
            with pytest.raises(ToolError, match="3 scripts wait for this kernel already"):
                await pid_of(kernels, at, max_queued_cells_per_kernel=3)
            await anyio.to_thread.run_sync(until.write_text, "x")
    assert order.read_text() == "012"


async def test_the_kernels_of_a_conversation_end_with_it(kernels: Kernels, tmp_path: Path) -> None:
    """With everything that they started; those of others stay, also when it is at work."""
    begun, until = pipes(tmp_path)
    mine, other = key(tmp_path, "mine"), key(tmp_path, "other")
    stays = await pid_of(kernels, other)
    script = (
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
    )
    await kernels.run_kept(mine, cell(script), settings(), session_key="mine")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy, kernels, mine, begun, until)
            await anyio.to_thread.run_sync(begun.read_text, abandon_on_cancel=True)
            await kernels.end_session("mine")
    assert not any(map(lives, pids_in(tmp_path / "pid")))
    assert lives(stays)
    assert kernels.kept_count == 1


async def test_nothing_is_left_of_a_runtime_that_ended(clock: FakeClock, tmp_path: Path) -> None:
    kernels = Kernels(clock)
    async with kernels.running():
        pid = await pid_of(kernels, key(tmp_path))
        assert lives(pid)
    assert not lives(pid)
    with pytest.raises(ToolError, match="Lemon is shutting down"):
        await kernels.run_once(launch_in(tmp_path), cell(PID))


@pytest.mark.parametrize(
    ("changed", "is_kept"),
    [
        (settings(timeout_ms=5_000), True),
        (ExecuteCode(enabled=True), False),
        (ExecuteCode(kernel_mode="session"), False),
    ],
)
async def test_a_changed_configuration_without_kernels_ends_them(
    kernels: Kernels, tmp_path: Path, changed: ExecuteCode, is_kept: bool
) -> None:
    pid = await pid_of(kernels, key(tmp_path))
    await kernels.apply(changed)
    assert lives(pid) is is_kept
    assert kernels.kept_count == int(is_kept)


def pipes(folder: Path) -> tuple[Path, Path]:
    found = folder / "begun", folder / "until"
    for path in found:
        os.mkfifo(path)
    return found
