"""With no key configured the embedded model answers: a real model, streaming."""

from __future__ import annotations

import json

import pytest

from tools.e2e.tests.stack import Ended, user

pytestmark = pytest.mark.anyio


def check(ended: Ended) -> None:
    """A real answer: several deltas that join to it, and counted tokens."""
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    deltas = [row["payload"]["text"] for row in rows if row["type"] == "delta"]
    completed = rows[-1]["payload"]["completed"]
    assert len(deltas) >= 2
    assert "".join(deltas) == completed["answer"]
    assert completed["answer"].strip()
    assert completed["usage"]["total_tokens"] > 0
    assert "embedded" in ended.err or "embedded" in ended.out


async def test_the_server_answers_from_the_embedded_model() -> None:
    async with user() as home, home.server() as server:
        assert "local:" in await server.wait_for("model")
        check(await home.lemon("run", "--json", "--session", "w", "Say hello"))


async def test_a_one_shot_run_answers_from_the_embedded_model() -> None:
    async with user() as home:
        check(await home.lemon("run", "--json", "--session", "w", "Say hello"))
