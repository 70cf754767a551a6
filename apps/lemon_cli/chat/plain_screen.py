"""A conversation in lines, for a terminal that cannot move its cursor."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, TextIO

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from lemon_cli.chat.plain_painter import PlainPainter
from lemon_cli.chat.screen import Input, Interrupted, Left, Line
from lemon_cli.chat.shown import Shown
from lemon_cli.chat.transcript import Transcript

PROMPT: Final = "> "
MAX_WAITING_INPUTS: Final = 256


class PlainScreen:
    """Reads whole lines from `stdin` and writes text as it comes."""

    def __init__(self, stdin: int, stdout: TextIO, transcript: Transcript) -> None:
        self._stdin, self._stdout, self._transcript = stdin, stdout, transcript
        self._painter = PlainPainter()
        self._has_prompt = False

    def show(self, shown: Iterable[Shown]) -> None:
        """Write these now."""
        text = self._painter.paint(shown)
        if text:
            if self._has_prompt:
                text = f"\n{text}"
            self._has_prompt = False
            self._write(text)

    def refresh(self) -> None:
        """The prompt says that it is the person's turn."""
        if not self._has_prompt and not self._transcript.turns:
            self._has_prompt = True
            self._write(PROMPT)

    @asynccontextmanager
    async def inputs(self) -> AsyncIterator[AsyncIterator[Input]]:
        """Lines and signals."""
        send, receive = anyio.create_memory_object_stream[Input](MAX_WAITING_INPUTS)
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, send.clone())
            tasks.start_soon(self._signals, send.clone())
            try:
                yield receive
            finally:
                tasks.cancel_scope.cancel()
        if self._has_prompt:
            self._write("\n")

    async def _read(self, send: MemoryObjectSendStream[Input]) -> None:
        rest = b""
        async with send:
            while True:
                # A terminal is readable when a whole line is there, or its end.
                await anyio.wait_readable(self._stdin)
                chunk = _available(self._stdin)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._has_prompt = False
                    await send.send(Line(line.decode(errors="replace")))
                if not chunk:
                    await send.send(Left())
                    return

    async def _signals(self, send: MemoryObjectSendStream[Input]) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        async with send:
            with anyio.open_signal_receiver(*numbers) as signals:
                async for number in signals:
                    # The terminal has written `^C`.
                    self._painter.leave_line()
                    self._has_prompt = False
                    await send.send(Interrupted() if number == signal.SIGINT else Left())

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


def _available(stdin: int) -> bytes:
    """What is there to read; nothing at the end, as which a terminal that went away counts."""
    try:
        return os.read(stdin, 65_536)
    except OSError:
        return b""
