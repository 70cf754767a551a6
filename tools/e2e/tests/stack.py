"""The built programs as processes: what a user starts, with a home directory of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from lemon_core.paths import PathSettings
from lemon_core.testing import temp_home

SERVER = Path("tools/release/server").absolute()
LEMON = Path("tools/release/lemon").absolute()

# Generous: these bounds only end a test that hangs.
START_S = 60.0
RUN_S = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Program:
    """A running program whose output is read line by line."""

    process: anyio.abc.Process
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)
    closed: int = 0

    async def wait_for(self, text: str) -> str:
        """The first line of stdout or stderr that holds `text`."""
        with anyio.fail_after(START_S):
            while True:
                for line in (*self.lines, *self.errors):
                    if text in line:
                        return line
                assert self.closed < 2, f"ended without {text!r}: {self.lines} {self.errors}"
                self.changed = anyio.Event()
                await self.changed.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        self.process.send_signal(number)

    async def wait(self) -> Ended:
        """Wait for its end."""
        with anyio.fail_after(RUN_S):
            code = await self.process.wait()
            while self.closed < 2:
                self.changed = anyio.Event()
                await self.changed.wait()
        return Ended(code, "\n".join(self.lines), "\n".join(self.errors))

    async def read(self, stream: anyio.abc.ByteReceiveStream | None, lines: list[str]) -> None:
        assert stream is not None
        rest = b""
        async for chunk in stream:
            *whole, rest = (rest + chunk).split(b"\n")
            lines.extend(line.decode(errors="replace") for line in whole)
            self.changed.set()
        if rest:
            lines.append(rest.decode(errors="replace"))
        self.closed += 1
        self.changed.set()


@dataclass(frozen=True, slots=True)
class Home:
    """A user's home and environment."""

    paths: PathSettings
    environ: Mapping[str, str]

    @property
    def work(self) -> Path:
        """The user's working directory."""
        return self.paths.home / "work"

    @asynccontextmanager
    async def start(self, *command: str | Path) -> AsyncIterator[Program]:
        """The program for the block; killed at the end when it is still there."""
        process = await anyio.open_process(
            [str(part) for part in command],
            env={**self.environ, "BUILD_WORKING_DIRECTORY": str(self.work)},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
        )
        program = Program(process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program.read, process.stdout, program.lines)
            tasks.start_soon(program.read, process.stderr, program.errors)
            try:
                yield program
            finally:
                if process.returncode is None:
                    process.kill()
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await process.aclose()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Program]:
        """The server, ready for work."""
        async with self.start(SERVER) as program:
            await program.wait_for("In another terminal")
            yield program

    async def lemon(self, *argv: str) -> Ended:
        """`lemon` with these arguments, to its end."""
        async with self.start(LEMON, *argv) as program:
            return await program.wait()


async def document(home: Home, *words: str, code: int = 0) -> Any:
    """The one JSON document that a command prints."""
    ended = await home.lemon(*words, "--json")
    assert ended.code == code, (words, ended)
    return json.loads(ended.out)


@asynccontextmanager
async def user(**environ: str) -> AsyncIterator[Home]:
    """A user with an empty home, on ports nobody else uses."""
    with temp_home() as paths:
        (paths.home / "work").mkdir()
        yield Home(
            paths,
            {
                "HOME": str(paths.home),
                "PATH": os.environ["PATH"],
                "LEMON_GATEWAY_HEALTH_PORT": "0",
                "LEMON_ROUTER_HEALTH_PORT": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                **{k: v for k, v in os.environ.items() if k.startswith("RUNFILES")},
                **environ,
            },
        )


def scripted(home: Home, base_url: str) -> Home:
    """The same user with the scripted model configured."""
    environ = {**home.environ, "OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": base_url}
    return Home(home.paths, environ)


@asynccontextmanager
async def model_server(script: Mapping[str, object], home: Path) -> AsyncIterator[str]:
    """The scripted model in a process of its own; yields its base URL for chat completions."""
    async with provider_server(script, home) as origin:
        yield f"{origin}/v1"


@asynccontextmanager
async def provider_server(script: Mapping[str, object], home: Path) -> AsyncIterator[str]:
    """A scripted server of every wire API in a process of its own; yields its origin."""
    import orjson  # only the fakes need it here

    path = home / "script.json"
    await anyio.Path(path).write_bytes(orjson.dumps(script))
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "lemon_ai.testing.provider_server",
        "--script",
        str(path),
    ]
    process = await anyio.open_process(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=None
    )
    try:
        assert process.stdout is not None
        with anyio.fail_after(START_S):
            origin = (await process.stdout.receive()).decode().strip()
        yield origin
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.wait()
