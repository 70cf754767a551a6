"""Tasks that outlive the call that starts them."""

from __future__ import annotations

import anyio
import pytest

from coding_agent.background import Background
from lemon_agent import ToolError

pytestmark = pytest.mark.anyio


async def test_tasks_end_with_the_block_and_none_starts_outside_of_it() -> None:
    background, ended = Background("nothing can be done"), anyio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    for _ in range(2):
        with pytest.raises(ToolError, match="nothing can be done: Lemon is shutting down"):
            background.start(work)
        async with background.running():
            background.start(work)
            await anyio.wait_all_tasks_blocked()
            assert not ended.is_set()
        assert ended.is_set()
        ended = anyio.Event()
