"""Counting finished runs (specification lemon_core 8.3: filled by core's own finalize hook)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from lemon_core.boot import boot
from lemon_core.events import Completion
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.store import (
    ModelUsage,
    RunStore,
    Store,
    StoreUnavailable,
    Usage,
    UsageRow,
    UsageStore,
)
from lemon_core.store.memory import MemoryBackend
from lemon_core.store.run_history import plain_summary
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home
from lemon_core.usage_meter import UsageMeter, utc_date

pytestmark = pytest.mark.anyio

REPORT: dict[str, object] = {"input": 10, "output": 2, "total_tokens": 12, "cost_usd": 0.5}
ONE = Usage(1, 1, 1, 10, 2, None, None, 12, 0.5)


def summary(usage: dict[str, object] | None, **facts: object) -> dict[str, object]:
    """A summary as the gateway makes it."""
    completed = Completion(ok=True, answer="hi", usage=usage)
    named = {"provider": "openai", "model": "m", **facts}
    return {"completed": completed, "session_key": "agent:default:main:sub:s", **named}


class Flaky(MemoryBackend):
    """Fails swaps with the errors that are waiting, one each."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[StoreUnavailable] = []
        self.swaps = 0

    async def compare_and_swap(
        self, table: str, key: bytes, expected: bytes | None, new: bytes | None
    ) -> bool:
        if self.errors:
            raise self.errors.pop()
        self.swaps += 1
        return await super().compare_and_swap(table, key, expected, new)


@pytest.fixture
def backend() -> Flaky:
    return Flaky()


@pytest.fixture
async def store(backend: Flaky) -> AsyncIterator[Store]:
    opened = Store(backend)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def meter(store: Store, clock: FakeClock) -> UsageMeter:
    return UsageMeter(UsageStore(store), clock)


@pytest.fixture
def runs(store: Store, clock: FakeClock, meter: UsageMeter) -> RunStore:
    return RunStore(store, clock, hooks=lambda: [meter.count])


async def test_each_finalized_run_is_counted_once(
    runs: RunStore, meter: UsageMeter, store: Store, clock: FakeClock
) -> None:
    await runs.begin("run_1", b"d", session_key="agent:default:main:sub:s")
    assert await runs.finalize("run_1", summary(REPORT))
    assert not await runs.finalize("run_1", summary(REPORT))
    await runs.finalize("run_2", summary(None, model="openai:m"))
    await runs.finalize("run_3", summary({"prompt_tokens": "4"}, provider=None, model=None))
    for _ in range(2):
        await runs.flush()
        await meter.flush()
    today = utc_date(clock.now_ms())
    usage = UsageStore(store)
    row = UsageRow(
        today,
        (
            ModelUsage("", "", Usage(1, 1, input=4)),
            ModelUsage("openai", "m", replace(ONE, runs=2)),
        ),
    )
    assert row.total == replace(ONE, runs=3, runs_reported=2, input=14)
    assert await usage.days() == [row]
    assert await usage.overall() == row
    assert await usage.current(today) == row


async def runs_counted(store: Store) -> tuple[int, int]:
    """Of all days, and of all time."""
    usage = UsageStore(store)
    overall = await usage.overall()
    days = sum(day.total.runs for day in await usage.days())
    return days, 0 if overall is None else overall.total.runs


async def test_a_run_counts_on_the_day_on_which_it_ended(
    runs: RunStore, meter: UsageMeter, store: Store, clock: FakeClock
) -> None:
    await runs.finalize("run_1", summary(REPORT))
    ended = utc_date(clock.now_ms())
    await clock.advance(86_400_000)
    await runs.flush()
    await meter.flush()
    assert [row.date for row in await UsageStore(store).days()] == [ended]


async def test_runs_that_come_together_are_written_together(
    meter: UsageMeter, backend: Flaky, clock: FakeClock, store: Store
) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meter.serve)
            for _ in range(100):
                meter.count({"summary": {"completed": {"usage": REPORT}}})
            await clock.wait_for_sleepers(1)
            await clock.advance(250)
            while not backend.swaps:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    await meter.flush()
    assert backend.swaps == 3
    assert await runs_counted(store) == (100, 100)


async def test_a_refused_addition_is_made_later_and_an_open_one_never_again(
    meter: UsageMeter, backend: Flaky, store: Store
) -> None:
    backend.errors = [StoreUnavailable("full")]
    meter.count({"summary": plain_summary(summary(REPORT))})
    with pytest.raises(StoreUnavailable):
        await meter.flush()
    await meter.flush()
    assert await runs_counted(store) == (1, 1)
    backend.errors = [StoreUnavailable("slow", outcome_unknown=True)]
    meter.count({"summary": plain_summary(summary(REPORT))})
    with pytest.raises(StoreUnavailable):
        await meter.flush()
    await meter.flush()
    assert await runs_counted(store) == (1, 2)


async def test_a_damaged_row_holds_up_no_other(meter: UsageMeter, store: Store) -> None:
    await store.put("usage_data", "current", "damaged")
    meter.count({"summary": plain_summary(summary(REPORT))})
    await meter.flush()
    assert await runs_counted(store) == (1, 1)
    assert await store.get("usage_data", "current") == "damaged"


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        yield home


async def test_the_last_run_of_a_runtime_is_counted(paths: PathSettings) -> None:
    """As a one-shot command ends: right after its run."""

    def booted() -> AbstractAsyncContextManager[Runtime]:
        environ = scrubbed_environ(paths.home)
        return boot(Profile("test"), cwd=paths.home, environ=environ, paths=paths, serve=False)

    with anyio.fail_after(5):
        async with booted() as runtime:
            await runtime.runs.finalize("run_1", summary(REPORT))
        async with booted() as runtime:
            overall = await UsageStore(runtime.store).overall()
    assert overall is not None
    assert overall.models == (ModelUsage("openai", "m", ONE),)
