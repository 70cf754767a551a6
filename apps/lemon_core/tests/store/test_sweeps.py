"""The schedule of the sweeps (specification lemon_core 8.1, 8.3)."""

from __future__ import annotations

import logging

import anyio
import pytest

from lemon_core.resume import ChatState
from lemon_core.store import ChatStateStore, RunStore, Store
from lemon_core.store.chat_state import CHAT_TTL_MS
from lemon_core.store.sweeps import SWEEP_INTERVAL_MS, serve_sweeps
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def backend_name() -> str:
    """The memory backend settles within the turns that the fake clock grants."""
    return "memory"


@pytest.mark.behaviour("lemon_core.25")
async def test_chat_goes_within_five_minutes_and_records_within_ten(
    store: Store, clock: FakeClock
) -> None:
    runs, chat = RunStore(store, clock), ChatStateStore(store, clock)
    await chat.put("s", ChatState("lemon", "sess_1"))
    await runs.finalize("run_1", {"completed": {"ok": True}})
    await clock.advance(CHAT_TTL_MS + 1)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_sweeps, runs, chat, clock)
            await clock.wait_for_sleepers()
            await clock.advance(SWEEP_INTERVAL_MS - 1)
            assert len(await store.list("chat")) == 1
            await clock.advance(1)
            assert await store.list("chat") == []
            assert len(await store.list("runs")) == 1
            await clock.advance(SWEEP_INTERVAL_MS)
            assert await store.list("runs") == []
            tasks.cancel_scope.cancel()


@pytest.mark.behaviour("lemon_core.25")
async def test_cron_runs_are_left_alone(store: Store, clock: FakeClock) -> None:
    """Their owner keeps them by number, not by age."""
    await store.put("cron_runs", "run_1", {"started_at_ms": 0})
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                serve_sweeps, RunStore(store, clock), ChatStateStore(store, clock), clock
            )
            await clock.wait_for_sleepers()
            await clock.advance(4 * SWEEP_INTERVAL_MS)
            tasks.cancel_scope.cancel()
    assert [key for key, _ in await store.list("cron_runs")] == ["run_1"]


async def test_a_failing_sweep_is_tried_again(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    runs, chat = RunStore(store, clock), ChatStateStore(store, clock)
    await store.put("chat", "damaged", "text")
    with anyio.fail_after(5), caplog.at_level(logging.ERROR, logger="lemon"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_sweeps, runs, chat, clock)
            await clock.wait_for_sleepers()
            await clock.advance(2 * SWEEP_INTERVAL_MS)
            tasks.cancel_scope.cancel()
    assert [record.message for record in caplog.records] == ["store.sweep_failed"] * 2
