"""The scripted model and the direct calls to it."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.testing import socket_dir
from tools.bench.model import PACE_MS, TOKENS, direct_model, running_model

pytestmark = pytest.mark.anyio


async def test_a_direct_call_sees_the_first_token_and_the_end() -> None:
    with socket_dir() as scratch, anyio.fail_after(30):
        async with running_model(scratch) as base_url, direct_model(base_url) as model:
            timing = await model.call()
            assert 0 < timing.first_token_s <= timing.total_s
            await model.queue([{"text": "paced words", "pace_ms": 1, "when": "slowly"}])
            slow = await model.call("slowly")
            assert 0 < slow.first_token_s <= slow.total_s


def test_an_answer_that_takes_its_time_takes_under_a_second() -> None:
    assert TOKENS * PACE_MS <= 1_000
