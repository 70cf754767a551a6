"""Shell lines as far as they can be read with certainty: simple commands, words, redirections.

Whatever the shell might read otherwise is refused (`Unreadable`): substitutions, here-documents,
subshells, reserved words, functions. A word may hold variables and patterns; it says so.

`inner_line` takes shells off (`sh -c '…'`): what is asked, stored and compared is the command that
runs and not the shell that runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lemon_core.tool_classes import words as names

MAX_CHARS: Final = 20_000
MAX_DEPTH: Final = 5

_CONTROL: Final = ("&&", "||", "|&", ";", "|", "&", "\n")
# `&>` is a redirection to bash alone; here-documents and here-strings are not read.
_REDIRECTION: Final = re.compile(r"(\d*)(>>|>\||>&|<&|<>|>|<)")
_RESERVED: Final = frozenset(
    names(
        "! { } [[ case coproc do done elif else esac fi for function if in select then time until "
        "while eval"
    )
)
_LIMIT: Final = re.compile(r"\d+(\.\d+)?[smhd]?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_STATEFUL: Final = frozenset(
    names(
        ". : alias bg cd declare disown enable exec exit export fg hash local popd pushd read "
        "readonly return set shift shopt source trap typeset ulimit umask unalias unset wait"
    )
)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_SPECIAL_IN_QUOTES: Final = '\\"$`'


class Unreadable(ValueError):
    """The line cannot be read with certainty."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotation marks. `raw` is what was written; `is_plain` tells that the
    shell takes `text` as it is, without variables, patterns or a home in front."""

    text: str
    raw: str
    is_plain: bool = True

    def shown(self) -> str:
        """One spelling for words that mean the same."""
        return shlex.quote(self.text) if self.is_plain else self.raw


@dataclass(frozen=True, slots=True)
class Redirection:
    """`operator` with the descriptor in front of it, and where it goes."""

    operator: str
    target: Word

    @property
    def writes(self) -> bool:
        """Whether the target is made or changed."""
        return ">" in self.operator

    @property
    def is_descriptor(self) -> bool:
        """Whether it goes to another descriptor and not to a file."""
        text = self.target.text
        return self.operator.endswith("&") and (text == "-" or text.rstrip("-").isdigit())


@dataclass(slots=True)
class Simple:
    """A simple command, and the operator that follows it."""

    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    then: str = ""

    def shown(self) -> str:
        """One spelling for commands that mean the same."""
        parts = [
            *(word.raw for word in self.assignments),
            *(word.shown() for word in self.words),
            *(f"{r.operator} {r.target.shown()}" for r in self.redirections),
        ]
        return " ".join(parts)


def parse_line(text: str) -> list[Simple]:
    """The simple commands of a line, in order; raises `Unreadable`."""
    if len(text) > MAX_CHARS or "\0" in text:
        raise Unreadable("too long, or with a null character")
    commands: list[Simple] = []
    current = Simple()
    tokens = _tokens(text)
    for kind, word in tokens:
        if kind == "control":
            if current.words or current.assignments or current.redirections:
                current.then = ";" if word.raw == "\n" else word.raw
                commands.append(current)
            elif word.raw != "\n":
                raise Unreadable(f"nothing stands before {word.raw!r}")
            current = Simple()
        elif kind == "redirection":
            following, target = next(tokens, ("", word))
            if following != "word":
                raise Unreadable(f"nothing stands after {word.raw!r}")
            current.redirections.append(Redirection(word.raw, target))
        elif not current.words and _NAME.match(word.raw):
            current.assignments.append(word)
        else:
            if not current.words and word.raw in _RESERVED:
                raise Unreadable(f"{word.raw!r} begins more than a simple command")
            current.words.append(word)
    if current.words or current.assignments or current.redirections:
        commands.append(current)
    return commands


def inner_line(text: str, depth: int = 0) -> list[Simple]:
    """The commands of a line with plain shells and wrappers taken off; raises `Unreadable`.

    A shell is plain when it runs one script given as text that uses no variables, and when the
    script means the same without it: it is all that the line does, or one program among others. A
    script that cannot be read makes the line unreadable. Wrappers are those that change nothing of
    what the command does (`timeout 5`, `nice`, `nohup`, `command`).
    """
    commands = parse_line(text)
    found: list[Simple] = []
    for command in commands:
        _take_off_wrappers(command)
        inner: list[Simple] = []
        for script in scripts_of(command.words):
            if not script.is_plain or depth >= MAX_DEPTH:
                raise Unreadable("a script that is not known here")
            inner = inner_line(script.text, depth + 1)
        if _is_plain_shell(command) and inner and (len(commands) == 1 or _is_one_program(inner)):
            inner[-1].then = command.then
            found += inner
        else:
            found.append(command)
    return found


def canonical(commands: Sequence[Simple]) -> str:
    """One spelling for lines that mean the same."""
    parts = []
    for index, command in enumerate(commands):
        then = command.then if index < len(commands) - 1 or command.then == "&" else ""
        parts.append(command.shown() + (f" {then}" if then and then != ";" else then))
    return " ".join(parts)


def scripts_of(words: Sequence[Word]) -> Iterator[Word]:
    """The scripts that a command gives to shells as text."""
    for index, word in enumerate(words[:-2]):
        option = words[index + 1].text
        if shell_name(word.text) and re.fullmatch(r"-[a-z]*c[a-z]*", option):
            yield words[index + 2]


def _is_plain_shell(command: Simple) -> bool:
    words = command.words
    if len(words) != 3 or command.assignments or command.redirections:
        return False
    return bool(shell_name(words[0].text)) and words[1].raw == "-c" and "$" not in words[2].text


def _take_off_wrappers(command: Simple) -> None:
    while command.words and not command.assignments:
        texts = [word.text if word.is_plain else "" for word in command.words]
        match texts:
            case ["command" | "nohup" | "nice", first, *_] if first[:1].isalpha():
                count = 1
            case ["timeout", limit, first, *_] if _LIMIT.fullmatch(limit) and first[:1].isalpha():
                count = 2
            case ["nice", "-n", number, _, *_] if number.isdigit():
                count = 3
            case _:
                return
        del command.words[:count]


def shell_name(program: str) -> str | None:
    """The shell that `program` names, by name or by its usual place; None when it is none."""
    name = program.removeprefix("/usr").removeprefix("/bin/")
    return name if name in _SHELLS else None


def _is_one_program(commands: Sequence[Simple]) -> bool:
    """Whether it is a single command that changes nothing in the shell that runs it."""
    if len(commands) != 1 or not commands[0].words or commands[0].then == "&":
        return False
    return commands[0].words[0].text not in _STATEFUL


def _tokens(text: str) -> Iterator[tuple[str, Word]]:
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t":
            position += 1
        elif text.startswith("\\\n", position):
            raise Unreadable("a line that goes on")
        elif char == "#":
            raise Unreadable("a comment")
        elif char in "()" or text.startswith(("<<", "&>", ";;"), position):
            raise Unreadable(f"{text[position : position + 2]!r}")
        elif redirection := _REDIRECTION.match(text, position):
            if text.startswith("(", redirection.end()):
                raise Unreadable("a process substitution")
            yield "redirection", Word(redirection[0], redirection[0])
            position = redirection.end()
        elif operator := next((o for o in _CONTROL if text.startswith(o, position)), None):
            yield "control", Word(operator, operator)
            position += len(operator)
        else:
            end, word = _word(text, position)
            yield "word", word
            position = end


def _word(text: str, start: int) -> tuple[int, Word]:
    parts: list[str] = []
    is_plain = text[start] != "~"
    position = start
    while position < len(text):
        char = text[position]
        if char in " \t\n;|&<>()":
            break
        if char == "'":
            end = _end_of_quote(text, position)
            parts.append(text[position + 1 : end])
            position = end + 1
        elif char == '"':
            position, inner, plain = _double_quoted(text, position + 1)
            parts.append(inner)
            is_plain = is_plain and plain
        elif char == "\\":
            if position + 1 >= len(text) or text[position + 1] == "\n":
                raise Unreadable("a line that goes on")
            parts.append(text[position + 1])
            position += 2
        else:
            _require_readable(text, position)
            is_plain = is_plain and char not in "$*?[]{}"
            parts.append(char)
            position += 1
    return position, Word("".join(parts), text[start:position], is_plain)


def _double_quoted(text: str, position: int) -> tuple[int, str, bool]:
    parts: list[str] = []
    is_plain = True
    while position < len(text):
        char = text[position]
        if char == '"':
            return position + 1, "".join(parts), is_plain
        if char == "\\" and position + 1 < len(text):
            following = text[position + 1]
            if following == "\n":
                raise Unreadable("a line that goes on")
            parts.append(following if following in _SPECIAL_IN_QUOTES else char + following)
            position += 2
            continue
        _require_readable(text, position)
        is_plain = is_plain and char != "$"
        parts.append(char)
        position += 1
    raise Unreadable("a quotation mark without its other")


def _require_readable(text: str, position: int) -> None:
    char, following = text[position], text[position + 1 : position + 2]
    if char == "`" or (char == "$" and following in ("(", "'", '"', "[")):
        raise Unreadable("a substitution")
    if char == "$" and following == "{":
        end = text.find("}", position)
        # `${name}` alone; what does more with it may run commands.
        if not re.fullmatch(r"\w+", text[position + 2 : max(end, position + 2)]):
            raise Unreadable("a substitution")


def _end_of_quote(text: str, start: int) -> int:
    end = text.find("'", start + 1)
    if end < 0:
        raise Unreadable("a quotation mark without its other")
    return end
