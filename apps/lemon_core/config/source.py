"""One configuration file: its values, and the line where each of them stands."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from lemon_core.config.statements import statements

KeyPath = tuple[str | int, ...]

# Far more than any person writes; a file that a repository brings along must not fill memory.
MAX_FILE_BYTES: Final = 1_048_576

# Nobody nests this deep by hand, and the parser's time grows with the square of it.
# Patterns are compiled where they are used: most starts read no file that needs them.
_DEEP_KEY: Final = r"""(?<![\w"'-])[\w"'-]++(?:[ \t]*+\.[ \t]*+[\w"'-]++){64,}"""
_END: Final = "end of the path"
_AT_LINE: Final = r"\s*\(at (?:line (\d+), column \d+|end of document)\)$"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about one value; `line` is 0 when it is not known."""

    path: KeyPath
    message: str
    line: int = 0

    def describe(self, origin: str) -> str:
        """`<origin>:<line>: <dotted.path>: <message>`, without what is not known."""
        place = f"{origin}:{self.line}" if self.line else origin
        return ": ".join(part for part in (place, dotted(self.path), self.message) if part)


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file as it was read: empty `data` when there is none or it cannot be used."""

    path: Path
    text: str = ""
    data: dict[str, object] = field(default_factory=dict)
    problem: Problem | None = None
    # What was read, for whoever has to know that it is the same as before.
    raw: bytes = field(default=b"", repr=False)
    # New paths of what stands under an earlier name in the text.
    moved: Mapping[KeyPath, KeyPath] = field(default_factory=dict, repr=False)

    def line_of(self, path: KeyPath) -> int:
        """The line of the value at `path`, or of what holds it; 0 when it is nowhere."""
        for new, old in self.moved.items():
            if path[: len(new)] == new:
                path = (*old, *path[len(new) :])
                break
        best, best_length = 0, 0
        for stated, line in _lines(self.text):
            length = _common(stated, path)
            exact = length == len(stated)
            if exact and length >= best_length:
                best, best_length = line, length
            elif length > best_length:
                # A table above that only appears inside a longer header (`[a.b]` for `a`).
                best, best_length = line, length
        return best

    def located(self, path: KeyPath, message: str) -> Problem:
        """A problem of the value at `path`, with its line."""
        return Problem(path, message, self.line_of(path))


def read_toml(path: Path) -> TomlFile:
    """The file at `path`; absent reads as empty, and whatever is wrong stands in `problem`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # A pipe would block and a device never ends.
            return TomlFile(path, problem=Problem((), "is not a regular file"))
        if status.st_size > MAX_FILE_BYTES:
            return TomlFile(path, problem=Problem((), f"is larger than {MAX_FILE_BYTES} bytes"))
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return TomlFile(path)
    except OSError as exc:
        return TomlFile(path, problem=Problem((), f"cannot be read: {exc.strerror}"))
    return replace(parse_toml(path, raw), raw=raw)


def parse_toml(path: Path, raw: bytes) -> TomlFile:
    """The file that `raw` would be at `path`."""
    import tomllib  # only when there is a file

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        return TomlFile(path, problem=Problem((), "is not UTF-8 text", line))
    text = text.replace("\r\n", "\n")
    if re.search(_DEEP_KEY, text):
        return TomlFile(path, text, problem=Problem((), "malformed TOML: nested too deeply"))
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        message, line = _without_place(str(exc), text)
        return TomlFile(path, text, problem=Problem((), f"malformed TOML: {message}", line))
    except RecursionError:
        return TomlFile(path, text, problem=Problem((), "malformed TOML: nested too deeply"))


def dotted(path: KeyPath) -> str:
    """`a.b[0]."odd key"`: a path as people write it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if bare else _quoted(part))
    return text


def parse_dotted(text: str) -> tuple[str, ...]:
    """The names in `a.b."odd key"`; raises `ValueError` for text of another form."""
    import tomllib

    if "\n" not in text:
        # Text that brings a value or a comment of its own does not end in this one.
        with suppress(tomllib.TOMLDecodeError, ValueError):
            table: object = tomllib.loads(f'{text} = "{_END}"')
            names: list[str] = []
            while isinstance(table, dict):
                ((name, table),) = table.items()
                names.append(name)
            if table == _END:
                return tuple(names)
    raise ValueError(f"{text!r} is no dotted path of a key, for example gateway.health_port")


def _quoted(key: str) -> str:
    # One line whatever the key holds, so that a file cannot forge lines of a report.
    return '"' + "".join(map(_escaped, key)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def _without_place(message: str, text: str) -> tuple[str, int]:
    match = re.search(_AT_LINE, message)
    if match is None:
        return message, 0
    line = int(match[1]) if match[1] else text.count("\n", 0, len(text.rstrip())) + 1
    return message[: match.start()].strip(), line


@lru_cache(maxsize=4)
def _lines(text: str) -> tuple[tuple[KeyPath, int], ...]:
    """The path and the line of every header and assignment of a valid document."""
    return tuple((found.path, found.line) for found in statements(text).items)


def _common(one: KeyPath, other: KeyPath) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
