"""A process that runs one prompt, to be killed in the middle: `crash_child FOLDER BASE_URL`."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from coding_agent.app import component
from coding_agent.executor import Executor
from coding_agent.tests.scene import Scene, fake_runtime
from lemon_agent.runtime import model_runtime
from lemon_ai.testing import FakeChatServer


async def main(folder: Path, base_url: str) -> None:
    runtime = fake_runtime(folder, base_url, {})
    async with runtime.service(model_runtime), component(runtime):  # type: ignore[arg-type]
        executor = Executor(runtime)  # type: ignore[arg-type]
        cwd = (folder / "work").resolve()
        here = Scene(FakeChatServer(), executor, runtime, cwd, folder / "agent")
        await here.run("do it")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
