"""Completion of slash commands, their arguments, and of paths behind an `@`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from lemon_cli.chat.slash import Candidate, complete
from lemon_cli.render import printable

MAX_PATHS: Final = 50


class ChatCompleter(Completer):
    """`words` gives the arguments of a command by its name; it may take its time. `own_commands`
    are the user's."""

    def __init__(
        self,
        words: Mapping[str, Callable[[], Iterable[str]]],
        cwd: Path,
        home: Path,
        own_commands: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._words, self._cwd, self._home = words, cwd, home
        self._own_commands = own_commands

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What may stand at the cursor."""
        before = document.text_before_cursor
        found = complete(before, self._words, self._own_commands)
        found = found or paths(before, self._cwd, self._home)
        for each in found:
            yield Completion(each.text, -each.length, display_meta=each.meta or None)


def is_completing(before: str) -> bool:
    """Whether completions show by themselves at this place."""
    word = before.rpartition(" ")[2].rpartition("\n")[2]
    return (before.startswith("/") and "\n" not in before) or word.startswith("@")


def paths(before: str, cwd: Path, home: Path) -> Sequence[Candidate]:
    """Files and folders that a word such as `@src/ma` may mean, and `/image src/ma`."""
    word = before.replace("\n", " ").rpartition(" ")[2]
    if before.startswith("/image "):
        typed = word
    elif word.startswith("@"):
        typed = word[1:]
    else:
        return ()
    folder, _, start = typed.rpartition("/")
    lead = f"{folder}/" if "/" in typed else ""
    where = home / lead[2:] if lead.startswith("~/") else cwd / lead
    try:
        with os.scandir(where) as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in entries
                if entry.name.startswith(start) and (start or not entry.name.startswith("."))
            )
    except OSError:
        return ()
    # A space would end the word, and a control character has no place in a line.
    named = [(n, d) for n, d in found if " " not in n and printable(n) == n]
    return [
        Candidate(f"{name}/" if is_dir else name, len(start)) for name, is_dir in named[:MAX_PATHS]
    ]
