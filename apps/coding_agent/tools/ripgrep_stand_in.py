"""What stands in for `rg` where there is none: the same files, the same lines, the same messages.

The text of this file is given to a Python interpreter, which runs as `rg` does: in a process that
can be ended, with the options that `grep` and `find` use and the output they read. It imports the
standard library and nothing else. Patterns are Python's, which differ from Rust's in rare things.
"""

from __future__ import annotations

import argparse
import base64
import codecs
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any

BOMS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# What a folder holds may have been put there to keep this from ending, or to fill the memory.
MAX_IGNORE_BYTES = 1_048_576
MAX_IGNORE_LINE = 4_096
MAX_FILE_BYTES = 67_108_864
MAX_DEPTH = 6_000
TOO_LARGE = f"has more than {MAX_FILE_BYTES} bytes, which are searched by ripgrep alone"
UNUSABLE = (re.error, RecursionError, OverflowError)
IGNORE_FILES = (".rgignore", ".ignore", ".gitignore")
# Classes that Rust knows by name and Python does not.
NAMED_CLASSES = {
    "[:alpha:]": "a-zA-Z",
    "[:digit:]": "0-9",
    "[:alnum:]": "a-zA-Z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:word:]": r"\w",
    "[:xdigit:]": "0-9A-Fa-f",
}


class Rule:
    """One line of an ignore file: which paths it is about, and whether it takes them back."""

    def __init__(self, line: str) -> None:
        self.keeps = line.startswith("!")
        text = line.removeprefix("!")
        self.only_folders = text.endswith("/")
        text = text.rstrip("/")
        if text.startswith("/"):
            text = text.lstrip("/")
        elif "/" not in text:
            text = f"**/{text}"
        if text.endswith("/**"):
            text += "/*"
        self._regex = re.compile(regex_of(text), re.DOTALL)

    def fits(self, path: str, is_folder: bool) -> bool:
        """Whether the rule is about this path, counted from the folder of its file."""
        return (is_folder or not self.only_folders) and self._regex.fullmatch(path) is not None


def rules_in(text: str) -> list[Rule]:
    """The rules of an ignore file; what cannot be read is passed over."""
    rules = []
    for raw in text.splitlines():
        line = raw if raw.endswith("\\ ") else raw.rstrip()
        if line and not line.startswith("#") and len(line) <= MAX_IGNORE_LINE:
            try:
                rules.append(Rule(line))
            except UNUSABLE:
                continue
    return rules


def regex_of(glob: str) -> str:
    """A pattern of an ignore file as a regular expression for whole paths."""
    parts: list[str] = []
    depth = 0
    tokens = re.finditer(
        r"\\(?P<plain>.)|(?P<any>(?:(?<=/)|\A)\*\*(?:/|\Z))|\*+|\?|(?P<set>\[[!^]?\]?[^\]]*\])|[{},]|.",
        glob,
        re.DOTALL,
    )
    for match in tokens:
        token = match[0]
        if match["plain"] is not None:
            parts.append(re.escape(match["plain"]))
        elif match["any"] is not None:
            parts.append(".*" if not token.endswith("/") else "(?:.*/)?")
        elif match["set"] is not None:
            inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            negated = inner[:1] in ("!", "^")
            parts.append(f"(?!/)[{'^' if negated else ''}{inner[1:] if negated else inner}]")
        elif token.startswith("*"):
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif token == "{":
            depth += 1
            parts.append("(?:")
        elif token == "}" and depth:
            depth -= 1
            parts.append(")")
        elif token == "," and depth:
            parts.append("|")
        else:
            parts.append(re.escape(token))
    return "".join(parts)


class Level:
    """What the ignore files of one folder say. `chain` holds the levels that say anything, this one
    first and then those above it."""

    def __init__(self, folder: str, above: Level | None) -> None:
        self.folder = folder
        self.is_repository = os.path.exists(os.path.join(folder, ".git"))
        self.rules = {name: rules_in(text_of(folder, name)) for name in IGNORE_FILES}
        self.excluded = rules_in(text_of(folder, ".git/info/exclude")) if self.is_repository else []
        says_something = self.is_repository or any(self.rules.values())
        self.chain: tuple[Level, ...] = (
            *((self,) if says_something else ()),
            *(above.chain if above is not None else ()),
        )

    def below(self, path: str) -> str:
        """`path`, which lies in this folder, counted from it."""
        return path[len(self.folder.rstrip("/")) + 1 :]


class Ignores:
    """Decides which paths are passed over: the deepest folder's word counts, and of its files
    `.rgignore` before `.ignore` before git's."""

    def __init__(self) -> None:
        self._global = rules_in(global_excludes())

    def verdict(self, level: Level, path: str, is_folder: bool) -> bool | None:
        """True: passed over; False: taken back from that; None: no rule is about it."""
        found: dict[str, bool] = {}
        in_repository = any(one.is_repository for one in level.chain)
        saw_repository = False
        for one in level.chain:
            below = one.below(path)
            for name, rules in one.rules.items():
                is_git = name == ".gitignore"
                if name not in found and not (is_git and (saw_repository or not in_repository)):
                    _decide(found, name, rules, below, is_folder)
            if not saw_repository and "exclude" not in found:
                _decide(found, "exclude", one.excluded, below, is_folder)
            saw_repository = saw_repository or one.is_repository
        if in_repository:
            top = next(one for one in level.chain if one.is_repository)
            _decide(found, "global", self._global, top.below(path), is_folder)
        order = (*IGNORE_FILES, "exclude", "global")
        return next((found[name] for name in order if name in found), None)


def _decide(
    found: dict[str, bool], name: str, rules: Sequence[Rule], below: str, is_folder: bool
) -> None:
    for rule in reversed(rules):
        if rule.fits(below, is_folder):
            found[name] = not rule.keeps
            return


class Walk:
    """The files below the working directory, sorted by path."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._hidden, self._max_depth = options.hidden, options.max_depth
        self._globs = [Rule(glob) for glob in options.glob]
        self._wants = any(not rule.keeps for rule in self._globs)
        self._ignores = Ignores()
        self.failed = False

    def files(self) -> Iterator[str]:
        """Their paths, from the working directory on."""
        top = os.getcwd()
        above: Level | None = None
        for folder in reversed(list(_parents(top))):
            above = Level(folder, above)
        yield from self._below("", Level(top, above), 1)

    def _below(self, prefix: str, level: Level, depth: int) -> Iterator[str]:
        try:
            with os.scandir(level.folder) as entries:
                found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except OSError as exc:
            complain(f"{prefix or '.'}: {exc.strerror}")
            self.failed = True
            return
        for entry in found:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                continue
            path = prefix + entry.name
            if self._is_left_out(level, entry, path, is_folder):
                continue
            if not is_folder:
                yield path
            elif self._max_depth is None or depth < self._max_depth:
                yield from self._below(f"{path}/", Level(entry.path, level), depth + 1)

    def _is_left_out(
        self, level: Level, entry: os.DirEntry[str], path: str, is_folder: bool
    ) -> bool:
        for rule in reversed(self._globs):
            if rule.fits(path, is_folder):
                return rule.keeps  # in an option `!` leaves out, and the rest is what is wanted
        if self._wants and not is_folder:
            return True
        verdict = self._ignores.verdict(level, entry.path, is_folder)
        if verdict is None:
            return not self._hidden and entry.name.startswith(".")
        return verdict


def _parents(folder: str) -> Iterator[str]:
    while (above := os.path.dirname(folder)) != folder:
        yield above
        folder = above


def text_of(folder: str, name: str) -> str:
    """The text of a small file, empty when there is none."""
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, encoding="utf-8", errors="surrogateescape") as file:
            about = os.fstat(fd)
            is_small = stat.S_ISREG(about.st_mode) and about.st_size <= MAX_IGNORE_BYTES
            return file.read(MAX_IGNORE_BYTES) if is_small else ""
    except OSError:
        return ""


def global_excludes() -> str:
    """The user's own ignore rules for all repositories."""
    home = os.environ.get("HOME", "")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    settings = text_of(home, ".gitconfig") or text_of(config, "git/config")
    named = re.search(r"(?im)^\s*excludesfile\s*=\s*\"?(.+?)\"?\s*$", settings)
    if named is not None:
        return text_of("", os.path.expanduser(named[1]))
    return text_of(config, "git/ignore")


# -- searching -------------------------------------------------------------------------------


def pattern_of(options: argparse.Namespace) -> re.Pattern[str]:
    """What is searched for; raises ValueError with a text for a person."""
    text = options.regexp
    if options.fixed_strings:
        text = re.escape(text)
    elif "\n" in text:
        raise ValueError('the literal "\\n" is not allowed in a regex')
    else:
        for name, chars in NAMED_CLASSES.items():
            text = text.replace(name, chars)
        text = re.sub(r"\(\?<(?![=!])", "(?P<", text)
    try:
        return re.compile(text, re.IGNORECASE if options.ignore_case else 0)
    except UNUSABLE as exc:
        raise ValueError(f"regex parse error: {exc}") from exc


def lines_of(data: bytes, *, explicit: bool) -> list[bytes]:
    """The lines with their ends; none of a binary file, unless it was asked for itself."""
    for mark, encoding in BOMS:
        if data.startswith(mark):
            data = data[len(mark) :].decode(encoding, errors="replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"\0" in data:
        if not explicit:
            return []
        data = data.replace(b"\0", b"\n")
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def search(name: str, lines: list[bytes], pattern: re.Pattern[str], context: int) -> bool:
    """Print the matches in a file; whether there were any."""
    found = [
        number
        for number, line in enumerate(lines)
        if pattern.search(line.removesuffix(b"\n").decode("utf-8", "surrogateescape"))
    ]
    matches = set(found)
    shown = {
        near
        for number in found
        for near in range(max(number - context, 0), min(number + context + 1, len(lines)))
    }
    for number in sorted(shown):
        say("match" if number in matches else "context", name, number, lines[number])
    return bool(found)


def say(kind: str, name: str, number: int, line: bytes) -> None:
    """Print a message as `rg --json` does."""
    data = {
        "path": as_json(os.fsencode(name)),
        "lines": as_json(line),
        "line_number": number + 1,
    }
    print(json.dumps({"type": kind, "data": data}))


def as_json(data: bytes) -> dict[str, Any]:
    """Bytes as text, or in base64 when they are none."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(data).decode()}


def complain(problem: str) -> None:
    """Tell what went wrong."""
    print(f"rg: {problem}", file=sys.stderr)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The options that are used here."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--files", "--null", "--json", "--no-config", "--hidden"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--ignore-case", "--fixed-strings"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--sort")
    parser.add_argument("--glob", action="append", default=[])
    parser.add_argument("--max-depth", type=int)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--regexp")
    parser.add_argument("place", nargs="?")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """List or search, and the exit code of `rg`."""
    options = options_of(arguments)
    walk = Walk(options)
    if options.files:
        out = sys.stdout.buffer
        for path in walk.files():
            out.write(os.fsencode(path) + b"\0")
        return 0
    try:
        pattern = pattern_of(options)
    except ValueError as exc:
        complain(str(exc))
        return 2
    if options.place == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            complain(TOO_LARGE)
            return 2
        lines = lines_of(data, explicit=True)
        return 0 if search("<stdin>", lines, pattern, options.context) else 1
    matched = False
    for path in walk.files():
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(fd, "rb") as file:
                is_usual = stat.S_ISREG(os.fstat(fd).st_mode)
                data = file.read(MAX_FILE_BYTES + 1) if is_usual else b""
        except OSError as exc:
            complain(f"./{path}: {exc.strerror}")
            walk.failed = True
            continue
        if len(data) > MAX_FILE_BYTES and b"\0" not in data:
            complain(f"./{path}: {TOO_LARGE}")
            walk.failed = True
            continue
        lines = lines_of(data, explicit=False)
        matched = search(f"./{path}", lines, pattern, options.context) or matched
    return 2 if walk.failed else 0 if matched else 1


if __name__ == "__main__":
    # Folders lie as deep as a path is long.
    sys.setrecursionlimit(MAX_DEPTH)
    try:
        code = main(sys.argv[1:])
    except Exception as exc:  # without this it would end as a search without matches does
        complain(f"failed: {type(exc).__name__}: {exc}")
        code = 2
    sys.exit(code)
