"""Where ripgrep searches: what was opened and checked, and no path that may lead elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coding_agent.workspace import opened
from lemon_agent import ToolError


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """A folder to run ripgrep in, or a file to give it as input."""

    path: Path
    cwd: str
    argument: str
    stdin: int | None = None

    def real(self, name: str) -> Path:
        """The path that ripgrep means by `name`."""
        return self.path if self.stdin is not None else self.path / name


@contextmanager
def search_place(path: Path, shown: str) -> Iterator[SearchPlace]:
    """The resolved `path` as a place to search, for the block; raises `ToolError`."""
    try:
        with opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                yield SearchPlace(path, str(path.parent), "-", fd)
            elif stat.S_ISDIR(mode):
                yield SearchPlace(path, _folder_of(fd, path), "./")
            else:
                raise ToolError(f"{shown} is neither a file nor a folder")
    except FileNotFoundError as exc:
        raise ToolError(f"{shown}: No such file or directory") from exc
    except PermissionError as exc:
        raise ToolError(f"{shown}: cannot be searched ({exc.strerror})") from exc


def _folder_of(fd: int, path: Path) -> str:
    """The open folder by a name that cannot be moved away under the program that enters it."""
    ours = f"/proc/{os.getpid()}/fd/{fd}"
    return ours if os.path.isdir(ours) else str(path)
