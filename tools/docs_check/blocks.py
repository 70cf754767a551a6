"""Console blocks of a document: what is typed, and what is shown to come back.

    ```console
    $ lemon run "Say hello"
    Hello…
    $ lemon run ""
    lemon: the prompt is empty…
    # exit 2
    ```

A line with `$ ` is typed, and goes on over lines with `> `, as a shell shows them. The lines below
it are its output; without any, the output is not looked at. `…` or `...` stands for any text of a
line, and alone on a line for any number of lines. `# exit N` is the exit code, 0 without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt

_EXIT = re.compile(r"# exit (\d+)")
_WILDCARD = re.compile(r"…|\.\.\.")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a document; `line` is where it stands there, from 1."""

    line: int
    command: str
    output: tuple[str, ...] = ()
    code: int = 0

    @property
    def in_background(self) -> bool:
        """True when the shell goes on while the command runs."""
        return self.command.endswith("&") and not self.command.endswith("&&")


class BlockError(Exception):
    """A block that nobody could type; the message says where and why."""


def steps(text: str) -> list[Step]:
    """The commands of all blocks marked `console`, in order; raises `BlockError`."""
    found: list[Step] = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence" and token.info.strip() == "console" and token.map is not None:
            # The fence itself is a line.
            found.extend(_of_block(token.content.splitlines(), token.map[0] + 2))
    return found


def _of_block(lines: Sequence[str], first: int) -> Iterator[Step]:
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise BlockError(f"line {first}: a console block begins with a command: `$ …`")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _step(lines[start:end], first + start)


def _step(lines: Sequence[str], line: int) -> Step:
    typed, code = [lines[0].removeprefix("$ ").rstrip()], 0
    rest = list(lines[1:])
    while rest and rest[0].startswith("> "):
        typed.append(rest.pop(0).removeprefix("> "))
    output = []
    for text in rest:
        if match := _EXIT.fullmatch(text.strip()):
            code = int(match[1])
        else:
            output.append(text.rstrip())
    while output and not output[-1]:
        output.pop()
    return Step(line, "\n".join(typed), tuple(output), code)


def shows(output: Sequence[str], actual: str) -> bool:
    """Whether `actual` is what the lines of `output` show; spaces at line ends do not count."""
    pattern = "".join(
        r"(?:.*\n)*" if _WILDCARD.fullmatch(line.strip()) else _line(line) + r"\n"
        for line in output
    )
    text = "".join(f"{line.rstrip()}\n" for line in actual.rstrip().splitlines())
    return re.fullmatch(pattern, text) is not None


def _line(line: str) -> str:
    return ".*".join(re.escape(part) for part in _WILDCARD.split(line.rstrip()))
