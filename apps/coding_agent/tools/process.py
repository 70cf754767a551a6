"""Runs a program in its own process group, with a certain end and with as little memory as asked.

However the call ends (by itself, by time-out, by cancellation), nothing of the group is left:
SIGTERM, two seconds, SIGKILL. Written on `subprocess` and not on asyncio's processes, whose `wait`
does not return on Python 3.11 and 3.12 while a descendant holds the output open.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.to_thread

from coding_agent.tools.process_group import end_group

# How long the output of descendants is waited for when the program itself has ended.
OUTPUT_GRACE_S: Final = 0.5
CHUNK_BYTES: Final = 65_536

Consumer = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended: `exit_code` is None when its time ran out, 128 + n for signal n."""

    exit_code: int | None

    @property
    def timed_out(self) -> bool:
        """Whether it was stopped at its time limit."""
        return self.exit_code is None


async def run_process(
    command: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    timeout_ms: int,
    stdout: Consumer,
    stderr: Consumer | None = None,
) -> Ending:
    """Run `command` to its end; its output goes to the consumers as it comes.

    stdin is empty; without a consumer of its own stderr goes where stdout goes. A consumer that
    waits makes the program wait. Cancellation ends the whole group before it goes on. Raises
    `OSError` when the program cannot be started.
    """
    process = await anyio.to_thread.run_sync(_spawn, command, cwd, environ, stderr is None)
    try:
        with anyio.move_on_after(timeout_ms / 1000):
            await _live(process, stdout, stderr)
    finally:
        code = process.returncode  # None: it has not ended by itself
        with anyio.CancelScope(shield=True):
            await end_group(process.pid)
            # Killed or not: what has ended is collected, what cannot be killed is not waited for.
            process.poll()
        for pipe in _pipes(process):
            pipe.close()
    return Ending(code if code is None or code >= 0 else 128 - code)


def _spawn(
    command: Sequence[str], cwd: Path, environ: Mapping[str, str], merge: bool
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    for pipe in _pipes(process):
        os.set_blocking(pipe.fileno(), False)
    return process


async def _live(
    process: subprocess.Popen[bytes], stdout: Consumer, stderr: Consumer | None
) -> None:
    """Until the program has ended and its output was read, as far as it comes soon after."""
    async with anyio.create_task_group() as tasks:
        read = anyio.Event()
        tasks.start_soon(_read_all, process, stdout, stderr, read)
        await _exited(process)
        with anyio.move_on_after(OUTPUT_GRACE_S):
            await read.wait()
        tasks.cancel_scope.cancel()


async def _read_all(
    process: subprocess.Popen[bytes],
    stdout: Consumer,
    stderr: Consumer | None,
    read: anyio.Event,
) -> None:
    async with anyio.create_task_group() as tasks:
        for pipe, consumer in zip(_pipes(process), (stdout, stderr), strict=False):
            if consumer is not None:
                tasks.start_soon(_read, pipe.fileno(), consumer)
    read.set()


async def _read(fd: int, consumer: Consumer) -> None:
    while True:
        await anyio.wait_readable(fd)
        try:
            chunk = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not chunk:
            return
        await consumer(chunk)


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Until the program has ended; its exit code is known then."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or not allowed in this container
        await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    try:
        await anyio.wait_readable(fd)
    finally:
        os.close(fd)
    process.poll()


def _pipes(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
