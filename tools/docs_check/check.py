"""Runs a document's console blocks and reports where they show something else than happens.

Two kinds of lines are not run: `git clone` and `tools/bazelw` need the network, or Bazel inside
Bazel. The folder of a clone is made, so that a `cd` works; of a Bazel line the labels are checked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from tools.docs_check.blocks import Step, shows
from tools.docs_check.labels import labels_in, missing
from tools.docs_check.shell import Ran, running_shell

# The embedded model on a busy machine takes its time; this only ends what hangs.
STEP_LIMIT_S: Final = 60.0
BAZELW: Final = "tools/bazelw"
_POLL_S: Final = 0.05
_ASSIGNMENT = re.compile(r"\w+=.*")
_JOINED = ("&&", "||", ";", "|", "&")


@dataclass(frozen=True, slots=True)
class Problem:
    """A step that does not do what the document shows."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the steps of one document run; `root` is the repository, `scratch` is for the check."""

    root: Path
    work: Path
    scratch: Path
    environ: Mapping[str, str]


async def check(
    steps: Sequence[Step], place: Place, *, limit_s: float = STEP_LIMIT_S
) -> list[Problem]:
    """Take the steps of one document in order, in one shell; the problems it has.

    A step that ran out of time or ended the shell is the last one.
    """
    problems: list[Problem] = []
    async with running_shell(place.environ, place.work, place.scratch) as shell:
        for step in steps:
            words = not_run(step.command)
            if words is not None:
                problems += [Problem(step.line, text) for text in _about(words, place.root)]
                if folder := clone_folder(words):
                    await shell.run(f"mkdir -p {shlex.quote(folder)}", limit_s=limit_s)
                continue
            ran = await shell.run(step.command, limit_s=limit_s)
            if step.in_background and ran.code == 0:
                await _wait_for(step, ran, limit_s)
            if (text := _compare(step, ran)) is not None:
                problems.append(Problem(step.line, text))
            if ran.code is None:
                break
    return problems


async def _wait_for(step: Step, ran: Ran, limit_s: float) -> None:
    """What a background command shows is also the sign that it is ready."""
    with anyio.move_on_after(limit_s):
        while step.output and not shows(step.output, ran.text()):  # noqa: ASYNC110 - a file
            await anyio.sleep(_POLL_S)


def _compare(step: Step, ran: Ran) -> str | None:
    told = f"`{step.command}`"
    if ran.code is None:
        return f"{told} ran out of time or ended the shell, after:\n{ran.text()}"
    if ran.code != step.code:
        return f"{told} ended with {ran.code}, not {step.code}:\n{ran.text()}"
    if step.output and not shows(step.output, ran.text()):
        shown = "\n".join(step.output)
        return f"{told} said:\n{ran.text().rstrip()}\nwhere the document shows:\n{shown}"
    return None


def not_run(command: str) -> list[str] | None:
    """The words of a line that is only checked; None for one that is run."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    while words and _ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    if words[:2] == ["git", "clone"] or (words and words[0].removeprefix("./") == BAZELW):
        return words
    return None


def clone_folder(words: Sequence[str]) -> str | None:
    """Where `git clone …` puts its copy; None when the words are no such command."""
    names = [word for word in words[2:] if not word.startswith("-")]
    if words[0] != "git" or not names:
        return None
    return (
        names[1] if len(names) > 1 else names[0].rstrip("/").rpartition("/")[2].removesuffix(".git")
    )


def _about(words: Sequence[str], root: Path) -> Iterator[str]:
    """What is wrong with a line that is not run."""
    if joined := [word for word in words if word in _JOINED]:
        yield f"`{words[0]}` is not run here: what follows `{joined[0]}` belongs on its own line"
    if words[0] == "git":
        if clone_folder(words) is None:
            yield "`git clone` of what?"
        return
    if not (root / BAZELW).is_file():
        yield f"{BAZELW} is not there"
    ours = words[1 : words.index("--")] if "--" in words else words[1:]
    for label in [label for word in ours for label in labels_in(word)]:
        if (reason := missing(root, label)) is not None:
            yield reason
