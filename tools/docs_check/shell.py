"""A shell that runs one command after the other, as a person types them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

STOP_LIMIT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command; the output is stdout and stderr as a terminal mixes them.

    `code` is None when it ended the shell or ran out of time.
    """

    code: int | None
    output: Path

    def text(self) -> str:
        """The output so far: what runs in the background may still write."""
        return self.output.read_text(encoding="utf-8", errors="replace")


class Shell:
    """One bash; made by `running_shell`. Variables and the directory last from command to command.

    Every command reads from /dev/null.
    """

    def __init__(self, process: anyio.abc.Process, scratch: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._scratch = scratch
        self._count = 0
        self._stuck = False

    async def run(self, command: str, *, limit_s: float) -> Ran:
        """Run a command to its end, or until the shell can go on after `&`."""
        self._count += 1
        script = self._scratch / f"{self._count}.sh"
        output = self._scratch / f"{self._count}.out"
        script.write_text(command + "\n", encoding="utf-8")
        # From a file, so that a command with an open quote cannot swallow what follows it.
        line = f'source "{script}" </dev/null >"{output}" 2>&1; echo $?\n'
        with anyio.move_on_after(limit_s):
            answer = await self._ask(line)
            return Ran(None if answer is None else int(answer), output)
        self._stuck = True
        return Ran(None, output)

    async def background(self) -> list[int]:
        """The processes that the shell's commands left in the background."""
        if not self._stuck:
            answer = await self._ask("echo $(jobs -rp)\n")
            return [int(pid) for pid in (answer or "").split()]
        return []

    async def _ask(self, line: str) -> str | None:
        """The line that the shell answers; None when it has ended."""
        try:
            await self._stdin.send(line.encode())
            return (await self._answers.receive_until(b"\n", 4_096)).decode()
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None


@asynccontextmanager
async def running_shell(
    environ: Mapping[str, str], cwd: Path, scratch: Path
) -> AsyncIterator[Shell]:
    """A shell for the block; what it left in the background is ended with it, by its ids."""
    process = await anyio.open_process(
        ["bash", "--noprofile", "--norc"],
        env=environ,
        cwd=cwd,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    shell = Shell(process, scratch)
    try:
        yield shell
    finally:
        with anyio.CancelScope(shield=True):
            for pid in await shell.background():
                await end(pid)
            # The shell's own session: whatever one of its commands has hidden from it.
            _signal(os.killpg, process.pid, signal.SIGKILL)
            await process.aclose()


async def end(pid: int) -> None:
    """Ask a process to end, and make it end when it does not."""
    _signal(os.kill, pid, signal.SIGTERM)
    with anyio.move_on_after(STOP_LIMIT_S):
        while lives(pid):  # noqa: ASYNC110 - the shell's child is not ours to wait for
            await anyio.sleep(_POLL_S)
        return
    _signal(os.kill, pid, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        send(target, number)


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # A zombie has ended; the shell has only not looked yet.
    return stat.rpartition(")")[2].split()[0] != "Z"
