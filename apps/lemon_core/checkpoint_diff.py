"""How a file differs from what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from lemon_core.checkpoint_files import FileState

ChangeKind = Literal["modified", "created", "deleted", "mode"]

TEXT_MAX_BYTES: Final = 512 * 1_024
"""Comparing longer text line by line takes too long; it is told without its lines."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """What happened to one file since its checkpoint; `diff` is unified, for people to read."""

    path: str
    change: ChangeKind
    diff: str


def compare(path: str, before: FileState, after: FileState) -> FileChange | None:
    """The change from `before` to `after`; None when there is none."""
    if before.content == after.content:
        if before.mode == after.mode:
            return None
        return FileChange(path, "mode", f"mode {_octal(before)} → {_octal(after)}\n")
    kind: ChangeKind = "modified"
    if not before.exists:
        kind = "created"
    elif not after.exists:
        kind = "deleted"
    return FileChange(path, kind, _text_diff(path, before.content or b"", after.content or b""))


def _text_diff(path: str, before: bytes, after: bytes) -> str:
    if max(len(before), len(after)) > TEXT_MAX_BYTES:
        return f"{path}: {len(before)} bytes before, {len(after)} bytes now\n"
    try:
        old, new = before.decode(), after.decode()
    except UnicodeDecodeError:
        return f"{path}: binary, {len(before)} bytes before, {len(after)} bytes now\n"
    import difflib

    split: Callable[[str], list[str]] = lambda text: text.splitlines(keepends=True)  # noqa: E731
    lines = difflib.unified_diff(split(old), split(new), f"checkpoint/{path}", f"current/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ no newline\n" for line in lines)


def _octal(state: FileState) -> str:
    return "none" if state.mode is None else f"{state.mode:04o}"
