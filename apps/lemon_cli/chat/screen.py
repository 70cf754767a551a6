"""The screen of a conversation: what the person does comes in, what is shown goes out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from lemon_cli.chat.shown import Shown


@dataclass(frozen=True, slots=True)
class Line:
    """A message or a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A key that answers the open question."""

    approval_id: str
    decision: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Esc: the run is to end, and the conversation goes on."""


@dataclass(frozen=True, slots=True)
class Left:
    """The input is at its end, or the process was told to end."""


Input = Line | Answered | Interrupted | Stopped | Left


class Screen(Protocol):
    """What a conversation is held on."""

    def show(self, shown: Iterable[Shown]) -> None:
        """Show these below what is there; returns at once."""

    def refresh(self) -> None:
        """What is going on has changed."""

    def inputs(self) -> AbstractAsyncContextManager[AsyncIterator[Input]]:
        """What the person does, until the block is left; everything shown is out then."""
