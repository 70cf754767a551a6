"""Waiting for whichever of several things comes first."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.waiting import first_of

pytestmark = pytest.mark.anyio


async def test_the_first_ends_the_wait_and_the_others_are_cancelled() -> None:
    ready, ended = anyio.Event(), anyio.Event()

    async def for_ever() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(5):
        ready.set()
        await first_of(for_ever, ready.wait)
    assert ended.is_set()
