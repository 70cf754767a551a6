"""Many runs one after the other leave everything where it was."""

from __future__ import annotations

import asyncio
import gc
import logging
import os

import anyio
import pytest

from lemon_core.journal import JournalLimits
from lemon_core.testing import FakeClock
from lemon_gateway.config import GatewaySettings
from lemon_gateway.tests.fakes import (
    NOW_MS,
    Gateway,
    ScriptedExecutor,
    answer_hello,
    command,
    running_gateway,
    settle,
)

MIB = 1024 * 1024


async def run_many(gateway: Gateway, numbers: range) -> None:
    for number in numbers:
        session = f"agent:a{number % 10}:main"
        await gateway.runtime.submit_execution(command(f"run_{number}", session_key=session))
        assert (await gateway.end(f"run_{number}")).answer == "hello"
        assert gateway.runtime.journal.total_bytes <= 8 * MIB
        # The scripted executor remembers its runs; a real one does not.
        gateway.executor.controls.clear()
        gateway.executor.order.clear()


async def past_retention(gateway: Gateway, clock: FakeClock) -> None:
    await clock.advance(8 * 86_400_000)
    gateway.runtime.journal.sweep()
    await gateway.records.sweep()
    await gateway.chat_states.sweep()
    gateway.emitted.clear()
    await settle()


def count_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.behaviour("lemon_gateway.39")
async def test_ten_thousand_runs_leave_memory_tasks_files_and_tables_where_they_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Specification lemon_gateway 13.39, measured after the fake clock passed the retention."""
    # pytest keeps every log record for its report: they would count as growth.
    caplog.set_level(logging.ERROR, "lemon")
    clock = FakeClock(NOW_MS)
    settings = GatewaySettings(node_id="n", journal=JournalLimits(total_max_bytes=8 * MIB))
    executor = ScriptedExecutor(answer_hello)
    with anyio.fail_after(120):
        async with running_gateway(executor, clock=clock, settings=settings) as gateway:
            await run_many(gateway, range(100))
            await past_retention(gateway, clock)
            tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
            objects = count_objects()

            await run_many(gateway, range(100, 10_100))
            history = await gateway.records.history("agent:a0:main")
            assert len(history) == 10
            assert all(record.state == "finished" for record in history)
            await past_retention(gateway, clock)

            runtime = gateway.runtime
            assert runtime.journal.run_ids() == ()
            assert runtime.journal.total_bytes == 0
            assert len(runtime._registry) == len(runtime._registry.live) == 0
            assert gateway.store.memory_table("runs") == {}
            assert gateway.store.memory_table("progress") == {}
            assert runtime.scheduler.worker_count() == 0
            assert runtime.lock.counts() == (0, 0)
            assert len(asyncio.all_tasks()) == tasks
            assert len(os.listdir("/proc/self/fd")) == files
            assert count_objects() - objects < 500


@pytest.mark.behaviour("lemon_gateway.39")
async def test_history_answers_when_journal_and_record_are_gone() -> None:
    """Specification lemon_gateway 13.39: after retention history still answers."""
    clock = FakeClock(NOW_MS)
    with anyio.fail_after(5):
        async with running_gateway(ScriptedExecutor(answer_hello), clock=clock) as gateway:
            await run_many(gateway, range(3))
            await clock.advance(700_000)
            assert gateway.runtime.journal.run_ids() == ()
            assert gateway.store.memory_table("runs") == {}
            snapshot = await gateway.runtime.get_run("run_1")
            assert snapshot is not None
            assert snapshot.terminal is not None
            assert snapshot.terminal.answer == "hello"
