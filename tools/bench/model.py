"""The scripted model: a server in a process of its own, and direct calls to it.

What a run costs beyond the model is the run's time minus the time of such a direct call, made in
the same run of the benchmark and with as many at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import orjson

from tools.bench.processes import running
from tools.bench.stats import Timing

TOKENS: Final = 20
PACE_MS: Final = 40
MODEL: Final = "scripted"
PACED_PROMPT: Final = "Take your time."
TOOL_PROMPT: Final = "Run the command."

_WORDS = [f"word{number} " for number in range(TOKENS)]
ANSWER: Final[dict[str, Any]] = {"text": _WORDS}
# A tenth of a second more or less is nothing here: a run takes 0.8 s, as with a quick real model.
PACED: Final[dict[str, Any]] = {"text": _WORDS, "pace_ms": PACE_MS, "when": PACED_PROMPT}
SHELL: Final[dict[str, Any]] = {
    "tool_calls": [{"name": "bash", "arguments": {"command": "true"}}],
    "when": TOOL_PROMPT,
}


@asynccontextmanager
async def running_provider(scratch: Path, answer: Mapping[str, Any]) -> AsyncIterator[str]:
    """A server of every wire API for the block; its origin. `answer` is what it says without a
    script. Its files go into `scratch`, one server each."""
    script = scratch / "script.json"
    document = {"default": answer, "models": [MODEL], "keep_requests": False}
    await anyio.Path(script).write_bytes(orjson.dumps(document))
    command = [sys.executable, "-m", "lemon_ai.testing.provider_server", "--script", str(script)]
    async with running(command, ready="http://") as server:
        yield server.line.strip()


@asynccontextmanager
async def running_model(scratch: Path) -> AsyncIterator[str]:
    """The model server for the block; its base URL. `ANSWER` is what it says without a script."""
    async with running_provider(scratch, ANSWER) as origin:
        yield f"{origin}/v1"


class DirectModel:
    """Calls the model as the plainest client would; made by `direct_model`."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str) -> None:
        self._http, self._base_url = http, base_url

    async def queue(self, turns: Sequence[dict[str, Any]]) -> None:
        """Put turns into the script, for the prompts they wait for."""
        url = self._base_url.removesuffix("/v1") + "/control/turns"
        async with self._http.post(url, data=orjson.dumps(list(turns))) as answer:
            answer.raise_for_status()

    async def call(self, prompt: str = "Say hello.") -> Timing:
        """One answer, read to its end."""
        body = {
            "model": MODEL,
            "stream": True,
            "messages": [{"role": "user", "content": prompt}],
        }
        began = time.perf_counter()
        first = 0.0
        async with self._http.post(
            f"{self._base_url}/chat/completions", data=orjson.dumps(body)
        ) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                if not first and b'"content"' in chunk:
                    first = time.perf_counter() - began
        return Timing(first, time.perf_counter() - began)


@asynccontextmanager
async def direct_model(base_url: str) -> AsyncIterator[DirectModel]:
    """A client of the model for the block, with as many connections as it needs."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield DirectModel(http, base_url)
