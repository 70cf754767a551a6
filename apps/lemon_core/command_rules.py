"""Which shell commands a policy's command lists let through.

An allow list names leading words: `git status` lets `git status -s` run. The text is read as the
shell would read it, and wherever the two readings could differ the command is refused: a reader
that misplaces one quotation mark sees harmless arguments where the shell sees a second command.
So comments, here-documents, substitutions, line continuations, subshells and odd operators are
refused outright under an allow list. Redirection to and from files stays possible.

A block list is a fence against accidents, not a jail: its entries match anywhere in the text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

_OPERATOR_CHARS: Final = "();<>|&\n"
_SEPARATORS: Final = frozenset({"", ";", "&", "&&", "||", "|", "|&"})
# `&>` is left out: bash reads it as a redirection, a plain sh as "in the background" and a new
# command. Here-documents are left out because quotation marks mean nothing in their bodies.
_REDIRECTIONS: Final = frozenset({">", ">>", "<", ">&", "<&", ">|", "<>"})
# Checked before anything is parsed, inside quotation marks too: `$(` and friends run inside double
# ones, `$'` quotes by other rules, `#` hides the rest of a line, and an escaped line end joins
# two halves of any of these.
_UNREADABLE: Final = re.compile(r"""`|\$[({\['"]|\\\n|(?:^|[\s;|&()<>])\#|\0""")


class UnreadableCommand(ValueError):
    """The text cannot be split into simple commands with certainty."""


def command_words(entry: str) -> tuple[str, ...]:
    """The words of a list entry; `UnreadableCommand` when its quotation marks do not match."""
    try:
        return tuple(shlex.split(entry))
    except ValueError as exc:
        raise UnreadableCommand(str(exc)) from exc


def canonical_entry(entry: str) -> str:
    """One spelling for entries with the same words."""
    return shlex.join(command_words(entry))


def overlap(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    """The entries that allow exactly what both lists allow: the longer of each overlapping pair."""
    right = [(entry, command_words(entry)) for entry in other]
    met: set[str] = set()
    for entry in one:
        words = command_words(entry)
        for other_entry, other_words in right:
            if starts_with(words, other_words):
                met.add(entry)
            elif starts_with(other_words, words):
                met.add(other_entry)
    return tuple(sorted(met))


def simple_commands(text: str) -> list[tuple[str, ...]]:
    """The simple commands of a shell line, each as its words without redirections.

    Raises `UnreadableCommand` for whatever the shell might read differently.
    """
    if _UNREADABLE.search(text):
        raise UnreadableCommand("substitution, comment or line continuation")
    commands: list[tuple[str, ...]] = []
    words: list[str] = []
    tokens = _tokens(text)
    for token, is_operator in tokens:
        if not is_operator:
            words.append(token)
        elif token in _REDIRECTIONS:
            _target, target_is_operator = next(tokens, ("", True))
            if target_is_operator:
                raise UnreadableCommand(f"nothing to redirect to after {token!r}")
        elif token.replace("\n", "") in _SEPARATORS:
            commands.append(tuple(words))
            words = []
        else:
            raise UnreadableCommand(f"operator {token!r}")
    commands.append(tuple(words))
    return [command for command in commands if command]


def allowed_by(entries: Iterable[str], text: str) -> bool:
    """True when every simple command of `text` begins with the words of some entry."""
    prefixes = [command_words(entry) for entry in entries]
    try:
        commands = simple_commands(text)
    except UnreadableCommand:
        return False
    return bool(commands) and all(
        any(starts_with(command, prefix) for prefix in prefixes) for command in commands
    )


def blocked_by(entries: Iterable[str], text: str) -> bool:
    """True when an entry occurs in `text`, compared with single spaces and without quoting."""
    readings = [" ".join(text.split())]
    with suppress(ValueError):
        readings.append(" ".join(" ".join(shlex.split(text)).split()))
    return any(entry in reading for entry in entries for reading in readings)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """The words and operators of `text`, each with whether it is an operator.

    A quoted operator (`';'`) passes for a real one. That only ever splits a command further, and
    every part has to be allowed.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATOR_CHARS)
    lexer.whitespace = " \t"  # a line end separates commands, and a carriage return is a letter
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        for token in lexer:
            yield token, bool(token) and not token.strip(_OPERATOR_CHARS)
    except ValueError as exc:
        raise UnreadableCommand(str(exc)) from exc


def starts_with(words: Sequence[str], prefix: Sequence[str]) -> bool:
    """True when `prefix` is a word-prefix of `words` (or equal to it)."""
    return tuple(words[: len(prefix)]) == tuple(prefix)
