"""Where a shell line reaches, as far as it can be seen: paths among its words and redirections.

This is a fence and no wall: what a program does is confined by a sandbox alone. But a line that
plainly names a file outside the workspace, as an argument of whatever program or behind a
redirection, is refused by where the path leads, links included, and not by the program's name.

The system's own programs, libraries and headers may be named: every build does. Programs that are
started may lie anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coding_agent.tools.command_text import (
    MAX_DEPTH,
    Simple,
    Unreadable,
    Word,
    inner_line,
    scripts_of,
)
from coding_agent.workspace import PathGuard, printable
from lemon_core.tool_classes import words as names
from lemon_core.workspace import is_inside

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
_DEVICES: Final = frozenset(
    f"/dev/{name}"
    for name in names("null zero full random urandom tty stdin stdout stderr fd/0 fd/1 fd/2")
)
_WRAPPERS: Final = frozenset(
    names("command exec env nice nohup stdbuf setsid time timeout sudo doas xargs ionice")
)
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SEARCH_PATH: Final = re.compile(r"\w*PATH=")
_PATTERN: Final = re.compile(r"[*?\[{]")
_HERE_DOCUMENT: Final = re.compile(
    r"<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n.*?^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE
)
_PIECES: Final = re.compile(r"[\s;|&<>()`\"']+")


@dataclass(frozen=True, slots=True)
class Reach:
    """Judges the lines of one run; `environ` is what its commands run with. In a sandbox the
    temporary folder is the command's own, and may be named."""

    guard: PathGuard
    environ: Mapping[str, str]
    in_sandbox: bool = False

    def outside(self, line: str) -> str | None:
        """The first path in `line` that leads out of the workspace; None when none is seen."""
        return self._first(self._all_paths(line, str(self.guard.cwd), 0))

    def _all_paths(self, line: str, base: str, depth: int) -> Iterator[tuple[str, str, bool]]:
        try:
            commands = inner_line(line)
        except Unreadable:
            return self._rough_paths(line, base)
        return self._paths(commands, base, depth)

    def _first(self, paths: Iterator[tuple[str, str, bool]]) -> str | None:
        for base, text, writes in paths:
            if self._leads_out(base, text, writes=writes):
                return text
        return None

    def _paths(
        self, commands: Sequence[Simple], base: str, depth: int
    ) -> Iterator[tuple[str, str, bool]]:
        """Each possible path with the directory that it starts at and whether it is written."""
        for command in commands:
            for redirection in command.redirections:
                if not redirection.is_descriptor:
                    yield base, self._expanded(redirection.target), redirection.writes
            settings = [word for word in command.assignments if not _SEARCH_PATH.match(word.text)]
            for word in (*settings, *_arguments(command.words)):
                for text in _candidates(self._expanded(word)):
                    yield base, text, False
            yield from self._scripts(base, command.words, depth)
            if [word.text for word in command.words] == ["cd"]:
                yield base, str(self.guard.home), False
            base = self._moved(base, command.words)

    def _scripts(
        self, base: str, words: Sequence[Word], depth: int
    ) -> Iterator[tuple[str, str, bool]]:
        """The paths in the scripts that a command gives to a shell."""
        for script in scripts_of(words):
            if depth < MAX_DEPTH:
                yield from self._all_paths(script.text, base, depth + 1)

    def _rough_paths(self, line: str, base: str) -> Iterator[tuple[str, str, bool]]:
        """The same for a line that cannot be read: whatever looks like a path in it. The text of a
        here-document is what a file will hold, and no path."""
        seen = _HERE_DOCUMENT.sub(r"\3", line)
        for piece in _PIECES.split(seen):
            for text in _candidates(self._expanded(Word(piece, piece, is_plain=False))):
                if text.startswith(("/", "../")) or text == "..":
                    yield base, text, False

    def _expanded(self, word: Word) -> str:
        text = word.text
        if word.is_plain:
            return text
        if text == "~" or text.startswith("~/"):
            text = f"{self.guard.home}{text[1:]}"
        known = {**self.environ, "PWD": str(self.guard.cwd)}
        text = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], ""), text)
        pattern = _PATTERN.search(text)
        # What a pattern finds lies below the folder in front of it.
        return text if pattern is None else text[: pattern.start()].rpartition("/")[0] or text

    def _moved(self, base: str, words: Sequence[Word]) -> str:
        if len(words) < 2 or words[0].text not in ("cd", "pushd"):
            return base
        there = os.path.realpath(os.path.join(base, self._expanded(words[-1])))
        return there if os.path.isdir(there) else base

    def _leads_out(self, base: str, text: str, *, writes: bool) -> bool:
        if not text or "\0" in text or len(text) > 4_096:
            return False
        path = os.path.join(base, text)
        real = os.path.realpath(path)
        if self.guard.permits(Path(real), writing=writes):
            return False
        if self.in_sandbox and is_inside(real, "/tmp"):
            return False
        if real in _DEVICES or path in _DEVICES or re.fullmatch(r"/dev/fd/\d+", path):
            return False
        if not writes and any(is_inside(real, folder) for folder in _SYSTEM):
            return False
        # A word such as `/api/v1` is no path where nothing is; a redirection always is one.
        parent = os.path.dirname(path.rstrip("/"))
        return writes or os.path.lexists(path) or (parent != "/" and os.path.isdir(parent))


def outside_message(path: str, roots: Sequence[str]) -> str:
    """What a refused line is told."""
    return f"{printable(path)} lies outside the workspace ({', '.join(roots)}): not run"


def _arguments(words: Sequence[Word]) -> Sequence[Word]:
    """All words but the program; a wrapper's own program is one of its arguments."""
    rest = list(words[1:])
    if words and os.path.basename(words[0].text) in _WRAPPERS:
        for index, word in enumerate(rest):
            if (
                not word.text.startswith("-")
                and not word.text[:1].isdigit()
                and "=" not in word.text
            ):
                return [*rest[:index], *_arguments(rest[index:])]
    return rest


def _candidates(text: str) -> Iterator[str]:
    """What of a word could be a path: itself, and what stands behind an option or a sign."""
    if text.startswith("file://"):
        yield text.removeprefix("file://").removeprefix("localhost")
        return
    if text.startswith("-"):
        _, found, value = text.partition("=")
        yield value if found else text[2:]
        return
    yield text.removeprefix("@")
    name, found, value = text.partition("=")
    if found and re.fullmatch(r"\w+", name):
        yield from (value,) if ":" not in value else value.split(":")
