"""What the terminal can do, as its environment tells, and its modes."""

from __future__ import annotations

import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

ColorSystem = Literal["standard", "256", "truecolor"]


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether the terminal can only take lines."""
    return environ.get("TERM", "").lower() in ("", "dumb", "unknown")


def color_system(environ: Mapping[str, str]) -> ColorSystem | None:
    """The colours that the terminal has; None when none are wanted."""
    if environ.get("NO_COLOR"):
        return None
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in environ.get("TERM", "") else "standard"


@contextmanager
def typed_ahead(fd: int) -> Iterator[None]:
    """What is typed in this block is not echoed, and waits as it is for whoever reads it then.

    By itself a terminal turns Enter into a line feed, which later means another key.
    """
    before = termios.tcgetattr(fd)
    quiet = termios.tcgetattr(fd)
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
