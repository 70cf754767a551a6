"""Writing what nobody waits for."""

from __future__ import annotations

import logging

import anyio
import pytest

from lemon_core.store import StoreUnavailable
from lemon_core.testing import FakeClock
from lemon_core.write_behind import RETRY_DELAY_MS, WRITE_DELAY_MS, WriteBehind

pytestmark = pytest.mark.anyio


class Written:
    """What was waiting and what is written; refuses while `errors` is not empty."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.written: list[list[int]] = []
        self.errors: list[StoreUnavailable] = []

    async def write(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.written.append(self.waiting)
        self.waiting = []


async def test_what_comes_within_a_moment_is_written_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, kept = FakeClock(), Written()
    behind = WriteBehind(kept.write, clock, event="numbers.not_written")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(behind.serve)
            for number in range(3):
                kept.waiting.append(number)
                behind.wake()
            await clock.wait_for_sleepers()
            await clock.advance(WRITE_DELAY_MS)
            assert kept.written == [[0, 1, 2]]
            kept.errors = [StoreUnavailable("full")]
            kept.waiting.append(3)
            behind.wake()
            await clock.wait_for_sleepers()
            with caplog.at_level(logging.WARNING, logger="lemon"):
                await clock.advance(WRITE_DELAY_MS)
            assert len(caplog.records) == 1
            assert kept.waiting == [3]
            await clock.advance(RETRY_DELAY_MS + WRITE_DELAY_MS)
            assert kept.written == [[0, 1, 2], [3]]
            tasks.cancel_scope.cancel()
    kept.waiting.append(4)
    await behind.close()
    assert kept.written[-1] == [4]


async def test_a_flush_tells_of_failure_and_closing_does_not() -> None:
    kept = Written()
    behind = WriteBehind(kept.write, FakeClock(), event="numbers.not_written")
    kept.errors = [StoreUnavailable("full"), StoreUnavailable("full")]
    with pytest.raises(StoreUnavailable):
        await behind.flush()
    await behind.close()
    assert kept.written == []
