"""One configuration file: its values, and the line where each of them stands."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

KeyPath = tuple[str | int, ...]

# Far more than any person writes; a file that a repository brings along must not fill memory.
MAX_FILE_BYTES: Final = 1_048_576

# Nobody nests this deep by hand, and the parser's time grows with the square of it.
# Patterns are compiled where they are used: most starts read no file that needs them.
_DEEP_KEY: Final = r"""(?<![\w"'-])[\w"'-]++(?:[ \t]*+\.[ \t]*+[\w"'-]++){64,}"""
# A statement longer than this is passed over when lines are looked up.
_MAX_STATEMENT_LINES: Final = 200

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

    def line_of(self, path: KeyPath) -> int:
        """The line of the value at `path`, or of what holds it; 0 when it is nowhere."""
        best, best_length = 0, 0
        for stated, line in _statements(self.text):
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
    return parse_toml(path, raw)


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


def _quoted(key: str) -> str:
    # One line whatever the key holds, so that a file cannot forge lines of a report.
    return '"' + key.encode("unicode_escape").decode().replace('"', '\\"') + '"'


def _without_place(message: str, text: str) -> tuple[str, int]:
    match = re.search(_AT_LINE, message)
    if match is None:
        return message, 0
    line = int(match[1]) if match[1] else text.count("\n", 0, len(text.rstrip())) + 1
    return message[: match.start()].strip(), line


@lru_cache(maxsize=4)
def _statements(text: str) -> tuple[tuple[KeyPath, int], ...]:
    """The key path and first line of every header and assignment of a valid document.

    Lines are collected until they parse on their own, which is what ends a statement of several
    lines; that way strings and arrays need no reader of their own here.
    """
    import tomllib

    found: list[tuple[KeyPath, int]] = []
    header: KeyPath = ()
    counts: dict[tuple[str, ...], int] = {}
    pending: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        pending.append(line)
        try:
            parsed = tomllib.loads("\n".join(pending))
        except tomllib.TOMLDecodeError:
            if len(pending) < _MAX_STATEMENT_LINES:
                continue
            return tuple(found)
        first, pending = number - len(pending) + 1, []
        if not parsed:
            continue
        keys = _single_keys(parsed)
        if line.lstrip().startswith("["):
            header = _numbered(keys, counts, is_array=line.lstrip().startswith("[["))
            found.append((header, first))
        else:
            found.append(((*header, *keys), first))
    return tuple(found)


def _single_keys(parsed: Mapping[str, object]) -> tuple[str, ...]:
    """The keys of a one-statement document, as deep as there is exactly one."""
    keys: list[str] = []
    value: object = parsed
    while True:
        if isinstance(value, list) and len(value) == 1 and value[0] == {}:
            value = value[0]
        if not isinstance(value, Mapping) or len(value) != 1:
            return tuple(keys)
        (key, value), *_ = value.items()
        keys.append(key)


def _numbered(
    keys: tuple[str, ...], counts: dict[tuple[str, ...], int], *, is_array: bool
) -> KeyPath:
    """A header's path with the index of every array of tables that it goes through."""
    if is_array:
        counts[keys] = counts.get(keys, -1) + 1
    path: list[str | int] = []
    for end, key in enumerate(keys, 1):
        path.append(key)
        if keys[:end] in counts:
            path.append(counts[keys[:end]])
    return tuple(path)


def _common(one: KeyPath, other: KeyPath) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
