"""What every test of the workspace shares."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio alone: gRPC and aiohttp have no other loop."""
    return "asyncio"
