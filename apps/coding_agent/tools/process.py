"""Runs a program in its own process group, with a certain end and with as little memory as asked.

However the call ends (by itself, by time-out, by cancellation), nothing of the group is left:
SIGTERM, two seconds, SIGKILL. Written on `subprocess` and not on asyncio's processes, whose `wait`
does not return on Python 3.11 and 3.12 while a descendant holds the output open.
"""

from __future__ import annotations

import errno
import os
import subprocess
import termios
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from coding_agent.tools.process_group import end_group

# How long the output of descendants is waited for when the program itself has ended.
OUTPUT_GRACE_S: Final = 0.5
COLLECT_GRACE_S: Final = 0.5
CHUNK_BYTES: Final = 65_536
PTY_SIZE: Final = (40, 120)

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
    cwd: Path | str,
    environ: Mapping[str, str],
    timeout_ms: int | None,
    stdout: Consumer,
    stderr: Consumer | None = None,
    stdin: int | None = None,
    pty: bool = False,
    on_start: Callable[[int], None] | None = None,
) -> Ending:
    """Run `command` to its end; its output goes to the consumers as it comes.

    Without `stdin`, a descriptor, there is no input; without a consumer of its own stderr goes
    where stdout goes. With `pty` both go to a terminal. A consumer that waits makes the program
    wait. `on_start` is told the number of the process group. Cancellation ends the whole group
    before it goes on. Raises `OSError` when the program cannot be started.
    """
    spawn = partial(_spawn_on_pty if pty else _spawn, command, cwd, environ, stdin)
    process, outputs = await anyio.to_thread.run_sync(spawn, stderr is None)
    try:
        if on_start is not None:
            on_start(process.pid)
        with anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000):
            await _live(process, outputs, (stdout, stderr or stdout))
    finally:
        code = process.returncode  # None: it has not ended by itself
        with anyio.CancelScope(shield=True):
            await end_group(process.pid)
            # What has ended is collected, its last thread too; what cannot be killed is not.
            if process.poll() is None:
                with anyio.move_on_after(COLLECT_GRACE_S):
                    await _exited(process)
        for fd in outputs:
            os.close(fd)
    return Ending(code if code is None or code >= 0 else 128 - code)


def _spawn(
    command: Sequence[str],
    cwd: Path | str,
    environ: Mapping[str, str],
    stdin: int | None,
    merge: bool,
) -> tuple[subprocess.Popen[bytes], list[int]]:
    outputs, ends = [], []
    try:
        for _ in range(1 if merge else 2):
            read, write = os.pipe()
            outputs.append(read)
            ends.append(write)
        return _started(command, cwd, environ, stdin, ends), outputs
    except BaseException:
        _close(outputs)
        raise
    finally:
        _close(ends)


def _spawn_on_pty(
    command: Sequence[str],
    cwd: Path | str,
    environ: Mapping[str, str],
    stdin: int | None,
    merge: bool,
) -> tuple[subprocess.Popen[bytes], list[int]]:
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, PTY_SIZE)
        return _started(command, cwd, environ, stdin, [theirs]), [ours]
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def _started(
    command: Sequence[str],
    cwd: Path | str,
    environ: Mapping[str, str],
    stdin: int | None,
    outputs: Sequence[int],
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=outputs[0],
        stderr=outputs[-1],
        start_new_session=True,
    )


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


async def _live(
    process: subprocess.Popen[bytes], outputs: Sequence[int], consumers: Sequence[Consumer]
) -> None:
    """Until the program has ended and its output was read, as far as it comes soon after."""
    async with anyio.create_task_group() as tasks:
        read = anyio.Event()
        tasks.start_soon(_read_all, outputs, consumers, read)
        await _exited(process)
        with anyio.move_on_after(OUTPUT_GRACE_S):
            await read.wait()
        tasks.cancel_scope.cancel()


async def _read_all(
    outputs: Sequence[int], consumers: Sequence[Consumer], read: anyio.Event
) -> None:
    async with anyio.create_task_group() as tasks:
        for fd, consumer in zip(outputs, consumers, strict=False):
            os.set_blocking(fd, False)
            tasks.start_soon(_read, fd, consumer)
    read.set()


async def _read(fd: int, consumer: Consumer) -> None:
    while True:
        await anyio.wait_readable(fd)
        try:
            chunk = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError as exc:
            if exc.errno == errno.EIO:  # how a terminal says that nobody writes to it any more
                return
            raise
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
