"""Where tools may go: every path is resolved through its links before it is trusted.

A resolved path holds no link. The functions that open one make sure of that once more, on what
they have opened: a link that is put in its way between check and use is refused as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coding_agent.own_files import OwnFiles
from lemon_agent import ToolError
from lemon_core.execution_context import Workspace
from lemon_core.workspace import is_inside


@dataclass(frozen=True, slots=True)
class PathGuard:
    """Turns what a model writes as a path into a real path inside the workspace.

    `cwd` and `readable` are real paths. Below `readable` there is what the session itself has kept,
    such as output that was too long to show: it may be read. With `own` some names mean files of
    the assistant. What runs inside a shell is not confined by this.
    """

    cwd: Path
    home: Path
    workspace: Workspace
    readable: tuple[Path, ...] = ()
    own: OwnFiles | None = None

    def resolve(self, text: object, *, writing: bool = False) -> Path:
        """The real path that `text` means; raises `ToolError` when the run may not go there.

        `~` is the user's home and relative paths start at the working directory.
        """
        if not isinstance(text, str) or not text.strip():
            raise ToolError("path is required")
        if "\0" in text:
            raise ToolError("path holds a null character")
        try:
            path = (self.cwd / self._expand(text)).resolve()
            # What is resolved is no link, unless the links run in a circle: newer Pythons return
            # such a path where older ones raise.
            if stat.S_ISLNK(path.lstat().st_mode):
                raise ToolError(f"{text}: cannot be used as a path (its links run in a circle)")
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as exc:  # a loop of links, a name that is too long
            raise ToolError(f"{text}: cannot be used as a path ({_reason(exc)})") from exc
        if not self.permits(path, writing=writing):
            roots = ", ".join(self.workspace.roots)
            raise ToolError(f"{text} lies outside the workspace ({roots}){self._advice(text)}")
        if writing and self.workspace.read_only:
            raise ToolError(f"{text}: the workspace is read-only for this run")
        return path

    def permits(self, path: Path, *, writing: bool = False) -> bool:
        """Whether `path`, a real path, is one where the run may read (or write)."""
        if in_workspace(str(path), self.workspace):
            return True
        if writing:
            return False
        readable = self.readable if self.own is None else (*self.readable, *self.own.readable)
        return any(path.is_relative_to(folder) for folder in readable)

    def trust(self, path: Path) -> Literal["trusted", "untrusted"]:
        """What the content of `path`, a real path, is worth.

        What the session has kept may be the rest of what came from outside; the file does not say.
        """
        is_kept = any(path.is_relative_to(folder) for folder in self.readable)
        return "untrusted" if is_kept else "trusted"

    def shown(self, path: Path) -> str:
        """`path` as a person would write it: relative to the working directory where possible."""
        text = str(path.relative_to(self.cwd)) if path.is_relative_to(self.cwd) else str(path)
        return printable(text)

    def _expand(self, text: str) -> Path:
        if text == "~" or text.startswith("~/"):
            return self.home / text[2:]
        own = None if self.own is None else self.own.meant_by(text, self.cwd)
        return Path(text) if own is None else own

    def _advice(self, text: str) -> str:
        if self.own is None or self.own.meant_by(text, self.cwd) is None:
            return ""
        return f": it is the assistant's own; ./{text} is the project's"


def in_workspace(path: str, workspace: Workspace) -> bool:
    """Whether `path`, a real path, lies inside a root.

    A real path that is written as lying inside a root does so: none of its folders is a link, and
    neither is the root then. Only otherwise has the root's own path to be resolved.
    """
    return any(is_inside(path, root) for root in workspace.roots) or workspace.contains(path)


def printable(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of the resolved `path` for the block.

    Raises `OSError`, and `ToolError` when what was opened lies somewhere else by now.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _place_of(fd) not in (None, os.fsencode(path)):
            raise ToolError(f"{printable(str(path))} was moved while it was being opened")
        yield fd
    finally:
        os.close(fd)


def _place_of(fd: int) -> bytes | None:
    """Where an open file really is; None where the system does not tell."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    except OSError:
        return None


def require_size(content: bytes, limit: int | None, shown: str) -> None:
    """Refuse content that is larger than the policy's `max_file_size`."""
    if limit is not None and len(content) > limit:
        raise ToolError(f"{shown}: {len(content)} bytes, but the policy allows {limit}")


def make_private_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, for this user alone (0700)."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _reason(exc: OSError | RuntimeError) -> str:
    return exc.strerror or "" if isinstance(exc, OSError) else "a loop of links"
