"""Questions to a person on the terminal: lists, yes or no, text, and text that is not shown.

Enter takes what is marked, `q`, `quit`, `cancel` and the end of the input give up, and a wrong
answer is explained and asked again. Giving up is never taken for the default. Questions are asked
outside of an event loop, so that Ctrl-C ends the command at once.
"""

from __future__ import annotations

import logging
import sys
import termios
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from lemon_cli.errors import CliError
from lemon_core.logs import ROOT

CANCEL_WORDS: Final = frozenset({"q", "quit", "cancel"})
_BOLD, _DIM, _GREEN, _YELLOW, _RED = "1", "2", "32", "33", "31"

Check = Callable[[str], str | None]
"""What is wrong with an answer, or None."""


class Cancelled(CliError):
    """The person gave up."""

    code = "cancelled"

    def __init__(self) -> None:
        super().__init__("cancelled")


class Ui:
    """One terminal, or none: then nothing is asked and callers must not try to."""

    def __init__(self, *, interactive: bool, colours: bool = False) -> None:
        self.interactive, self._colours = interactive, colours

    @classmethod
    def of(cls, environ: Mapping[str, str], *, interactive: bool = True) -> Ui:
        """The process's terminal; `interactive` False forbids questions where they could be."""
        is_terminal = has_terminal()
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        return cls(
            interactive=interactive and is_terminal,
            colours=is_terminal and not plain,
        )

    # -- output ------------------------------------------------------------------------------

    def say(self, text: str = "") -> None:
        """A line of the conversation."""
        print(text, flush=True)

    def bold(self, text: str) -> str:
        """`text` that stands out."""
        return self._styled(_BOLD, text)

    def dim(self, text: str) -> str:
        """`text` in the background."""
        return self._styled(_DIM, text)

    def good(self, text: str) -> str:
        """`text` of something that is done."""
        return self._styled(_GREEN, text)

    def pending(self, text: str) -> str:
        """`text` of something that is to be done."""
        return self._styled(_YELLOW, text)

    def bad(self, text: str) -> str:
        """`text` of something that failed."""
        return self._styled(_RED, text)

    # -- questions ---------------------------------------------------------------------------

    def choose(
        self,
        question: str,
        options: Sequence[str],
        *,
        default: int = 0,
        notes: Sequence[str] = (),
    ) -> int:
        """The index of the chosen option: by its number or its whole label, Enter the default.

        `notes` stand beside the labels. Raises `Cancelled`.
        """
        self.say(self.bold(question))
        width, digits = max(map(_width, options)), len(str(len(options)))
        for index, label in enumerate(options):
            mark = ">" if index == default else " "
            note = notes[index] if index < len(notes) else ""
            gap = " " * (width - _width(label))
            line = f" {mark} {index + 1:>{digits}}. {label}{gap}  {self.dim(note)}"
            self.say(line.rstrip() if not note else line)
        labels = [label.casefold() for label in options]
        while True:
            answer = self._line(f"Number or name [{default + 1}]: ")
            if not answer:
                return default
            if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(options):
                return int(answer) - 1
            if answer.casefold() in labels:
                return labels.index(answer.casefold())
            self.say(
                f"{answer!r} is none of them: type a number from 1 to {len(options)}, or a name "
                "(q gives up)."
            )

    def confirm(self, question: str, *, default: bool) -> bool:
        """Yes or no; Enter takes the default. Raises `Cancelled`."""
        marks = "Y/n" if default else "y/N"
        while True:
            answer = self._line(f"{question} [{marks}] ").casefold()
            if not answer:
                return default
            if answer in ("y", "yes"):
                return True
            if answer in ("n", "no"):
                return False
            self.say("Type y or n (q gives up).")

    def ask(self, question: str, *, default: str | None = None, check: Check | None = None) -> str:
        """A line of text; Enter takes the default where there is one. Raises `Cancelled`."""
        marks = f" [{default}]" if default else ""
        return self._checked(lambda: self._line(f"{question}{marks}: "), default, check)

    def ask_hidden(self, question: str, *, check: Check | None = None) -> str:
        """A line that is not shown while it is typed. Raises `Cancelled`."""
        return self._checked(lambda: self._line(f"{question} (hidden): ", hidden=True), None, check)

    def _checked(self, read: Callable[[], str], default: str | None, check: Check | None) -> str:
        while True:
            answer = read() or default or ""
            problem = check(answer) if check is not None and answer else None
            if answer and problem is None:
                return answer
            self.say(problem or "Nothing was typed (q gives up).")

    def _line(self, prompt: str, *, hidden: bool = False) -> str:
        assert self.interactive, "nothing is asked without a terminal"
        # The echo is off before the question shows: whoever sees it may type at once.
        with silent_logs(), _echo(hidden=hidden):
            print(prompt, end="", flush=True)
            line = sys.stdin.readline()
        if hidden or not line:
            print(flush=True)  # the typed line end was not shown, or there was none
        answer = line.strip()
        if not line or answer.casefold() in CANCEL_WORDS:
            raise Cancelled
        return answer

    def _styled(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours and text else text


def has_terminal() -> bool:
    """Whether a person reads what is printed and can answer."""
    # A program that is started without one of them has None there.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


@contextmanager
def silent_logs() -> Iterator[None]:
    """No log line comes between a question and its answer."""
    root = logging.getLogger(ROOT)
    before = root.disabled
    kept = logging.root.manager.disable
    root.disabled = True
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        root.disabled = before
        logging.disable(kept)


@contextmanager
def _echo(*, hidden: bool) -> Iterator[None]:
    """With `hidden` the terminal does not show what is typed."""
    if not hidden:
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    silent = list(before)
    silent[3] &= ~termios.ECHO
    # FLUSH would throw away what was pasted before the question appeared.
    termios.tcsetattr(fd, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _width(text: str) -> int:
    """How many columns `text` takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
