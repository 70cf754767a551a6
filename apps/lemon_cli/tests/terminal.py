"""Python code on a terminal of its own, for tests that cannot be async themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from anyio.from_thread import BlockingPortal, start_blocking_portal

from lemon_core.testing.terminal import Terminal
from lemon_core.testing.terminal import terminal as open_terminal

# Whole menus fit, so that what a test looks for has not scrolled away.
ROWS = 60


@dataclass(frozen=True, slots=True)
class Screen:
    """A `Terminal` whose waiting methods block."""

    terminal: Terminal
    portal: BlockingPortal

    @property
    def text(self) -> str:
        """The screen's lines."""
        return self.terminal.text

    @property
    def raw(self) -> bytes:
        """Every byte that was written."""
        return self.terminal.raw

    def type(self, text: str) -> None:
        """Type `text` as it is."""
        self.terminal.type(text)

    def wait_for(self, wanted: str) -> None:
        """Read until `wanted` stands on the screen."""
        self.portal.call(self.terminal.wait_for, wanted)

    def answer(self, question: str, line: str) -> None:
        """Wait for a question and answer it."""
        self.portal.call(self.terminal.answer, question, line)

    def end(self) -> int:
        """The exit code."""
        return self.portal.call(self.terminal.end)


@contextmanager
def terminal(code: str, *arguments: str, environ: Mapping[str, str]) -> Iterator[Screen]:
    """Python runs `code` on a terminal of its own; it is killed at the end of the block."""
    command = [sys.executable, "-c", code, *arguments]
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], **environ}
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(open_terminal(command, env, rows=ROWS)) as screen,
    ):
        yield Screen(screen, portal)
