"""What a run asks, asked on the terminal; an answer from elsewhere ends the question."""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from lemon_cli.render import APPROVAL_PREFIX
from lemon_core.events import EngineAction

QUESTION: Final = "  allow it? [y = once, s = this session, N = no] "
ANSWERS: Final = {
    "y": "approve_once",
    "yes": "approve_once",
    "s": "approve_session",
    "session": "approve_session",
}


class Answers(Protocol):
    """Where answers go."""

    async def answer(self, approval_id: str, decision: str) -> bool:
        """Answer a question; False when it is not open any more."""


class Asker:
    """Asks the questions of one run, one at a time, in tasks of `tasks`."""

    def __init__(self, tasks: TaskGroup, answers: Answers) -> None:
        self._tasks, self._answers = tasks, answers
        self._open: dict[str, anyio.CancelScope] = {}
        self._terminal = anyio.Lock()

    def step(self, step: EngineAction) -> None:
        """Begin or end a question, if that is what this step of the run is about."""
        if step.action.kind != "approval":
            return
        approval_id = step.action.id.removeprefix(APPROVAL_PREFIX)
        if step.phase == "started":
            scope = self._open[approval_id] = anyio.CancelScope()
            self._tasks.start_soon(self._ask, approval_id, scope)
        elif approval_id in self._open:
            self._open.pop(approval_id).cancel()

    async def _ask(self, approval_id: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._terminal:
                decision = await _decision()
            await self._answers.answer(approval_id, decision)


async def _decision() -> str:
    """The person's decision; everything but a clear yes is a no."""
    print(QUESTION, end="", file=sys.stderr, flush=True)
    # A terminal is readable when a whole line is there.
    await anyio.wait_readable(sys.stdin.fileno())
    line = os.read(sys.stdin.fileno(), 1_024).decode(errors="replace")
    return ANSWERS.get(line.strip().lower(), "deny")
