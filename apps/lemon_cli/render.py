"""How a run looks in a terminal, and how a script reads it.

The answer goes to stdout; everything about it goes to stderr, one line each. Text from a model
cannot move the cursor or colour the terminal.
"""

from __future__ import annotations

import json
import re
from typing import Protocol, TextIO

from lemon_core.errors import error_text
from lemon_core.events import Completion, Delta, EngineAction, Event, RunCompleted

# Escape sequences and control characters other than tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARKS = {True: "✓", None: "✓", False: "✗"}
_LINE_LIMIT = 160
APPROVAL_PREFIX = "approval:"
CREDENTIAL_HINT = " (lemon providers shows whose key is used, lemon model NAME stores another)"


def printable(text: str) -> str:
    """`text` without control characters; tabs and newlines stay."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """`text` as a single line that fits a terminal."""
    line = " ".join(printable(text).split())
    return line if len(line) <= _LINE_LIMIT else line[: _LINE_LIMIT - 1] + "…"


class Renderer(Protocol):
    """Shows the events of one run."""

    def event(self, event: Event) -> None:
        """Show one event."""

    def note(self, text: str) -> None:
        """Tell the person something that is not part of the run."""


class JsonRenderer:
    """One JSON document per event and line on stdout; the last one is `run_completed`."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    def event(self, event: Event) -> None:
        """Write the event's map form."""
        line = json.dumps(event.to_map(), ensure_ascii=False, separators=(",", ":"))
        print(line, file=self._stdout, flush=True)

    def note(self, text: str) -> None:
        """Notes never disturb the stream that a script reads."""
        print(f"lemon: {text}", file=self._stderr, flush=True)


class TextRenderer:
    """Streams the answer; one line for each step of a tool."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._clean = stdout.isatty()
        # Both on one screen: a line on stderr must not start in the middle of the answer.
        self._shared = stdout.isatty() and stderr.isatty()
        self._streamed = False
        self._mid_line = False

    def event(self, event: Event) -> None:
        """Show one event."""
        match event.payload:
            case Delta(text=text):
                self._answer(text)
            case EngineAction() as step:
                self._step(step)
            case RunCompleted(completed=completed):
                self._end(completed)
            case _:
                pass

    def note(self, text: str) -> None:
        """One line on stderr."""
        if self._shared and self._mid_line:
            self._write("\n")
        print(f"lemon: {text}", file=self._stderr, flush=True)

    def _answer(self, text: str) -> None:
        self._streamed = True
        self._write(printable(text) if self._clean else text)

    def _write(self, text: str) -> None:
        if text:
            self._stdout.write(text)
            self._stdout.flush()
            self._mid_line = not text.endswith("\n")

    def _step(self, step: EngineAction) -> None:
        title = one_line(step.action.title)
        if step.action.kind == "note":
            # A notice is a sentence for the person: whole, however long.
            self.note(" ".join(printable(step.action.title).split()))
        elif step.action.kind == "reasoning" or step.phase == "updated":
            return
        elif step.action.kind == "approval" and step.phase == "started":
            approval_id = step.action.id.removeprefix(APPROVAL_PREFIX)
            self._line(f"? {title}: lemon approvals allow {approval_id} (or deny)")
        elif step.action.kind == "approval":
            self._line(f"{_MARKS[step.ok]} {title}: {one_line(step.message or 'answered')}")
        elif step.phase == "started":
            self._line(f"▸ {title}")
        else:
            reason = f": {one_line(step.message)}" if step.message and step.ok is False else ""
            self._line(f"{_MARKS[step.ok]} {title}{reason}")

    def _line(self, text: str) -> None:
        if self._shared and self._mid_line:
            self._write("\n")
        print(f"  {text}", file=self._stderr, flush=True)

    def _end(self, completed: Completion) -> None:
        if not self._streamed and completed.answer:
            self._answer(completed.answer)
        if self._mid_line:
            self._write("\n")


def failure(completed: Completion) -> str:
    """Why a run failed, in one line, and what to do where that is known."""
    error = completed.error
    if isinstance(error, dict) and error.get("message"):
        detail = error.get("detail")
        refused = isinstance(detail, dict) and detail.get("category") == "auth"
        return one_line(str(error["message"])) + (CREDENTIAL_HINT if refused else "")
    return one_line(error_text(error)) or "no reason was given"
