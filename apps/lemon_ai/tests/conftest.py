"""Fixtures of lemon_ai's own tests: a scripted server on loopback and a client that never waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lemon_ai import Client
from lemon_ai.testing import FakeChatServer
from lemon_ai.tests.support import Sleeps
from lemon_ai.transport import Transport


@pytest.fixture
async def server() -> AsyncIterator[FakeChatServer]:
    async with FakeChatServer() as fake:
        yield fake


@pytest.fixture
def sleeps() -> Sleeps:
    """What the client would have slept."""
    return Sleeps()


@pytest.fixture
async def client(sleeps: Sleeps) -> AsyncIterator[Client]:
    """A client without an environment, whose retries do not wait."""
    transport = Transport(env={}, sleep=sleeps, jitter=lambda: 0.5)
    async with Client(env={}, transport=transport) as opened:
        yield opened
