"""Fixtures of the adapter suite: every test runs once for each wire API."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lemon_ai.testing import FakeProviderServer
from lemon_ai.tests.adapters.cases import CASES, ApiCase


@pytest.fixture(params=CASES, ids=[case.api for case in CASES])
def case(request: pytest.FixtureRequest) -> ApiCase:
    """One wire API."""
    found = request.param
    assert isinstance(found, ApiCase)
    return found


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    """A scripted server that speaks all of them."""
    async with FakeProviderServer() as server:
        yield server
