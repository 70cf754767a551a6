"""The directories a run may work in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _absolute(path: str) -> str:
    # `..` is refused rather than folded: folding it would skip over a link in front of it.
    if not os.path.isabs(path) or os.path.normpath(path) != path or path.startswith("//"):
        raise ValueError("must be an absolute path without '.', '..' or doubled slashes")
    if "\0" in path:
        raise ValueError("must not contain a null character")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Workspace(BaseModel):
    """Where a run works: its directory, the roots that it may not leave, and whether it may write.

    The paths are absolute, and `cwd` lies inside a root as they are written. `Workspace.at` builds
    one from loose paths; what links mean is checked where the workspace is used (`contains`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    cwd: AbsolutePath
    # Not strict about the container: JSON knows only lists.
    roots: tuple[AbsolutePath, ...] = Field(min_length=1, strict=False)
    read_only: bool = False

    @model_validator(mode="after")
    def _starts_inside(self) -> Workspace:
        if not any(is_inside(self.cwd, root) for root in self.roots):
            raise ValueError("cwd must lie inside one of the roots")
        return self

    @classmethod
    def at(cls, cwd: str, roots: Iterable[str] = (), *, read_only: bool = False) -> Workspace:
        """A workspace with all links resolved; without roots, `cwd` is the only one.

        Relative paths count from the directory of this process. Raises pydantic's
        `ValidationError` when `cwd` lies outside the roots.
        """
        real_cwd = os.path.realpath(cwd)
        real_roots = tuple(dict.fromkeys(os.path.realpath(root) for root in roots))
        return cls(cwd=real_cwd, roots=real_roots or (real_cwd,), read_only=read_only)

    def contains(self, path: str) -> bool:
        """True when `path`, seen from `cwd` and with its links resolved, lies inside a root."""
        if "\0" in path:
            return False
        plain = os.path.join(self.cwd, path)
        if plain in self.roots:  # mostly; a root lies inside itself, wherever links lead it
            return True
        real = os.path.realpath(plain)
        return any(is_inside(real, os.path.realpath(root)) for root in self.roots)

    def lies_within(self, roots: Iterable[str]) -> bool:
        """True when every root lies inside one of `roots` and `cwd` inside an own one, resolved."""
        outer = [os.path.realpath(root) for root in roots]
        mine = [os.path.realpath(root) for root in self.roots]
        return self.contains(self.cwd) and all(
            any(is_inside(root, limit) for limit in outer) for root in mine
        )


def is_inside(path: str, root: str) -> bool:
    """True when `path` is `root` or lies below it; both are plain absolute paths."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")
