"""A child process on a pseudo-terminal, and the screen that a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pyte

# Generous: it only ends a test that hangs.
LIMIT_S: Final = 30.0
COLUMNS, ROWS = 100, 60


@dataclass(eq=False, slots=True)
class Terminal:
    """The child, its screen, and all that it has printed."""

    process: subprocess.Popen[bytes]
    fd: int
    screen: pyte.Screen = field(default_factory=lambda: pyte.Screen(COLUMNS, ROWS))
    raw: bytes = b""
    answered: int = 0
    stream: pyte.ByteStream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        """The screen's lines without what is blank at their ends."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, wanted: str, times: int = 1) -> None:
        """Read until `wanted` stands on the screen so many times."""
        until = time.monotonic() + LIMIT_S
        while self.text.count(wanted) < times:
            assert self._read(until), f"ended or silent without {wanted!r}:\n{self.text}"

    def type(self, text: str) -> None:
        """Type `text` as it is: a line needs its Enter."""
        os.write(self.fd, text.encode())

    def answer(self, question: str, line: str) -> None:
        """Wait for `question` in what came since the last answer, and answer it."""
        until = time.monotonic() + LIMIT_S
        while question.encode() not in self.raw[self.answered :]:
            assert self._read(until), f"ended or silent without {question!r}:\n{self.text}"
        self.answered = len(self.raw)
        self.type(f"{line}\n")

    def end(self) -> int:
        """The child's exit code."""
        until = time.monotonic() + LIMIT_S
        while self._read(until):
            pass
        return self.process.wait(LIMIT_S)

    def _read(self, until: float) -> bool:
        """Read some output; False at its end or when time ran out."""
        ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        try:
            chunk = os.read(self.fd, 65_536)
        except OSError:  # what Linux says when the other side is closed
            return False
        self.raw += chunk
        self.stream.feed(chunk)
        return bool(chunk)


@contextmanager
def terminal(
    code: str, *arguments: str, environ: Mapping[str, str], cwd: str | None = None
) -> Iterator[Terminal]:
    """Python runs `code` on a terminal of its own; it is killed at the end of the block."""
    command = [sys.executable, "-c", code, *arguments]
    master, slave = pty.openpty()
    env = {"TERM": "xterm", "PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"], **environ}
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        cwd=cwd,
        start_new_session=True,
        # Control-C is for whoever has the terminal as its own.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        os.close(master)
