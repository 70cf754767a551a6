"""Where the `rg` program is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping

from lemon_agent import ToolError


class Ripgrep:
    """The user's own `rg`, else the one that the package `ripgrep` brought; looked for once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._path: str | None = None

    def path(self) -> str:
        """The program's path; raises `ToolError` when there is none."""
        if self._path is None:
            self._path = shutil.which("rg", path=self._environ.get("PATH", "")) or _packaged()
        return self._path


def _packaged() -> str:
    for place in _places():
        if os.access(place, os.X_OK):
            return place
    raise ToolError("grep needs ripgrep (rg): install the package ripgrep, or rg itself")


def _places() -> Iterator[str]:
    yield os.path.join(sys.prefix, "bin", "rg")
    # Packages that were installed into a folder of their own have their programs in its bin.
    for folder in sys.path:
        yield os.path.join(folder, "bin", "rg")
