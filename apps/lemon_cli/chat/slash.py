"""The commands that begin with a slash: their names, how a line becomes one, and completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final


@dataclass(frozen=True, slots=True)
class Slash:
    """A command as help and completion show it."""

    name: str
    arguments: str
    summary: str


COMMANDS: Final = (
    Slash("help", "", "this list"),
    Slash("model", "[MODEL|-]", "show or choose the model of this session; - takes it back"),
    Slash("thinking", "[LEVEL|-]", "show or choose how hard it thinks; - takes it back"),
    Slash("session", "[WORD|KEY]", "show this session, or go on in another"),
    Slash("sessions", "", "list the sessions, last used first"),
    Slash("new", "", "go on in a fresh session"),
    Slash("steer", "TEXT", "give the working run more to think about"),
    Slash("interrupt", "TEXT", "end the working run and do this instead"),
    Slash("queue", "[MODE]", "what waits, or how messages reach a working run"),
    Slash("drop", "", "take back the messages that wait"),
    Slash("abort", "", "end the working run"),
    Slash("approvals", "", "the questions that wait, of every session"),
    Slash("approve", "ID [SCOPE]", "answer one: once, session, agent or global"),
    Slash("deny", "ID", "answer one with no"),
    Slash("image", "PATH", "send a picture with the next message; or write @PATH"),
    Slash("status", "", "where this conversation happens, and what it is doing"),
    Slash("usage", "", "tokens and cost of this chat"),
    Slash("quit", "", "leave"),
)
BY_NAME: Final[Mapping[str, Slash]] = {command.name: command for command in COMMANDS}
ALIASES: Final[Mapping[str, str]] = {"exit": "quit", "q": "quit", "?": "help"}


@dataclass(frozen=True, slots=True)
class Call:
    """A command with what follows its name."""

    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A word after a slash that is no command; `close` may be what was meant."""

    name: str
    close: str | None


def parse(line: str) -> Call | Unknown | None:
    """What a line calls; None for a message, as which a path such as `/etc/hosts` counts too."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    word, _, rest = line[1:].partition(" ")
    if not word or "/" in word or "\n" in word:
        return None
    name = ALIASES.get(word.lower(), word.lower())
    if name in BY_NAME:
        return Call(name, rest.strip())
    close = get_close_matches(name, list(BY_NAME), n=1)
    return Unknown(word, close[0] if close else None)


def takes_more(line: str) -> bool:
    """Whether a line is the bare name of a command after which something may stand."""
    command = BY_NAME.get(line.removeprefix("/")) if line.startswith("/") else None
    return command is not None and bool(command.arguments)


def help_text() -> str:
    """Every command in a line."""
    usages = [f"/{c.name} {c.arguments}".rstrip() for c in COMMANDS]
    width = max(map(len, usages))
    lines = [f"{u:<{width}}  {c.summary}" for u, c in zip(usages, COMMANDS, strict=True)]
    keys = (
        "Enter sends, also while a run works. Alt+Enter or Ctrl+J begins a new line.",
        "Esc or Ctrl+C ends the working run, a second Ctrl+C leaves. Ctrl+D leaves.",
        "Tab completes, Up and Ctrl+R bring back earlier messages.",
    )
    return "\n".join([*lines, "", *keys])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completion: `text` replaces the last `length` characters before the cursor."""

    text: str
    length: int
    meta: str = ""


def complete(
    before: str,
    words: Mapping[str, Callable[[], Iterable[str]]],
    own: Callable[[], Iterable[str]] = tuple,
) -> Sequence[Candidate]:
    """The completions of a slash command; `words` gives those of an argument by command, `own` the
    commands that the user has written."""
    if not before.startswith("/") or "\n" in before:
        return ()
    word, space, rest = before[1:].partition(" ")
    if not space:
        given = [(c.name, c.summary) for c in COMMANDS if c.name.startswith(word.lower())]
        mine = [(name, "your own") for name in own() if name not in BY_NAME]
        given += [pair for pair in mine if pair[0].startswith(word)]
        return [Candidate(f"/{name}", len(before), meta) for name, meta in given]
    known = words.get(ALIASES.get(word, word))
    if known is None or " " in rest:
        return ()
    return [Candidate(text, len(rest)) for text in known() if _fits(text, rest)]


def _fits(text: str, typed: str) -> bool:
    """From its beginning, or from a part's: `gpt` finds `openai:gpt-5`."""
    low, typed = text.lower(), typed.lower()
    return low.startswith(typed) or (bool(typed) and f":{typed}" in low)
