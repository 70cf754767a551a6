"""A program on a pseudo-terminal of its own, and the screen that a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import pyte

# Generous: it only ends a test that hangs.
LIMIT_S: Final = 30.0
CTRL_C, CTRL_D, ENTER, NEW_LINE, TAB = "\x03", "\x04", "\r", "\n", "\t"
# A session leader without a terminal takes the one that it asks for: then Ctrl-C is a signal.
_TAKE: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class _Screen(pyte.Screen):
    """A screen that answers what programs ask of a terminal, such as where its cursor is."""

    def __init__(self, columns: int, rows: int, fd: int) -> None:
        super().__init__(columns, rows)
        self._fd = fd

    def write_process_input(self, data: str) -> None:
        os.write(self._fd, data.encode())


class Terminal:
    """The program, its screen, and every byte that it has written."""

    def __init__(
        self, process: subprocess.Popen[bytes], fd: int, columns: int, rows: int, limit_s: float
    ) -> None:
        self._process, self._fd, self._limit_s = process, fd, limit_s
        self._screen = _Screen(columns, rows, fd)
        self._stream = pyte.ByteStream(self._screen)
        self._answered = 0
        self.raw = b""

    @property
    def text(self) -> str:
        """The screen's lines without what is blank at their ends."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def type(self, text: str) -> None:
        """Type `text` as it is; surrogate escapes are the bytes that they stand for."""
        os.write(self._fd, text.encode(errors="surrogateescape"))

    def enter(self, line: str) -> None:
        """Type a line and Enter."""
        self.type(line + ENTER)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        self._process.send_signal(number)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window, as dragging its corner does."""
        _set_size(self._fd, columns, rows)
        self._screen.resize(rows, columns)

    async def wait_for(self, wanted: str, times: int = 1) -> str:
        """Read until `wanted` stands on the screen so many times; the screen."""
        while self.text.count(wanted) < times:
            assert await self._read(), f"ended or silent without {wanted!r}:\n{self.text}"
        return self.text

    async def answer(self, question: str, line: str) -> None:
        """Wait for `question` in what came since the last answer, and type `line` and its end."""
        while question.encode() not in self.raw[self._answered :]:
            assert await self._read(), f"ended or silent without {question!r}:\n{self.text}"
        self._answered = len(self.raw)
        self.type(line + NEW_LINE)

    async def wait_gone(self, unwanted: str) -> str:
        """Read until `unwanted` is on the screen no more; the screen."""
        while unwanted in self.text:
            assert await self._read(), f"ended or silent with {unwanted!r}:\n{self.text}"
        return self.text

    async def end(self) -> int:
        """The program's exit code."""
        while await self._read():
            pass
        return await anyio.to_thread.run_sync(self._process.wait, self._limit_s)

    async def _read(self) -> bool:
        """Read some output; False at its end or when time ran out."""
        with anyio.move_on_after(self._limit_s) as limit:
            await anyio.wait_readable(self._fd)
        if limit.cancelled_caught:
            return False
        try:
            chunk = os.read(self._fd, 65_536)
        except OSError:  # what Linux says when the other side is closed
            return False
        self.raw += chunk
        self._stream.feed(chunk)
        return bool(chunk)


@asynccontextmanager
async def terminal(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
    columns: int = 100,
    rows: int = 40,
    limit_s: float = LIMIT_S,
) -> AsyncIterator[Terminal]:
    """`command` on a terminal of that size (`TERM` is xterm-256color unless `environ` says else).

    It is killed at the end of the block when it is still there.
    """
    master, slave = pty.openpty()
    try:
        _set_size(slave, columns, rows)
        process = subprocess.Popen(  # noqa: ASYNC220  (it returns at once; anyio closes the fds)
            [sys.executable, "-c", _TAKE, *map(str, command)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={"TERM": "xterm-256color", **environ},
            cwd=cwd,
            start_new_session=True,
        )
    finally:
        os.close(slave)
    try:
        yield Terminal(process, master, columns, rows, limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)


def _set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
