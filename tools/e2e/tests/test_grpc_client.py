"""The client of `docs/grpc_client.md`, as it stands there, against the built server."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import anyio
import pytest

from tools.e2e.tests.stack import RUN_S, Home, model_server, user

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[3] / "docs" / "grpc_client.md"
ANSWER = ["Hello ", "from ", "the ", "model."]


def client() -> str:
    """The one Python block of the guide."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.M)
    assert len(blocks) == 1
    return str(blocks[0])


async def test_the_client_of_the_guide_shows_the_answer() -> None:
    """It needs no file of this repository: the server's reflection tells it everything."""
    code = client()
    assert len(code.splitlines()) < 40
    assert "lemon." in code
    assert "_pb2" not in code
    async with user() as home:
        script = {"default": {"text": ANSWER}}
        async with model_server(script, home.paths.home) as base_url:
            environ = {**home.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": base_url}
            async with Home(home.paths, environ).server():
                path = os.pathsep.join(sys.path)
                with anyio.fail_after(RUN_S):
                    ended = await anyio.run_process(
                        [sys.executable, "-c", code, "Say hello"],
                        env={**home.environ, "PYTHONPATH": path},
                        check=False,
                    )
    assert (ended.returncode, ended.stdout.decode()) == (0, "".join(ANSWER)), ended.stderr.decode()
