"""How `rg` is called, or what stands in for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lemon_core.logs import get_logger

log = get_logger(__name__)


class Ripgrep:
    """The user's own `rg`, else the one that the package `ripgrep` brought, else a slower one in
    Python that finds the same; looked for once, unless its `command` is given."""

    def __init__(self, environ: Mapping[str, str], command: tuple[str, ...] | None = None) -> None:
        self._environ = environ
        self._command = command

    def command(self) -> tuple[str, ...]:
        """The beginning of its command line. Blocking."""
        if self._command is None:
            self._command = self._found()
        return self._command

    def _found(self) -> tuple[str, ...]:
        path = shutil.which("rg", path=self._environ.get("PATH", "")) or _packaged()
        if path is not None:
            return (path,)
        log.info("ripgrep.missing", advice="searches are slower without rg")
        return stand_in()


def stand_in() -> tuple[str, ...]:
    """The command line of what stands in for `rg`.

    Its program is part of it, and isolated: nothing of the folder that is searched is imported.
    """
    text = Path(__file__).with_name("ripgrep_stand_in.py").read_text(encoding="utf-8")
    return (sys.executable, "-I", "-S", "-c", text)


def _packaged() -> str | None:
    return next((place for place in _places() if os.access(place, os.X_OK)), None)


def _places() -> Iterator[str]:
    yield os.path.join(sys.prefix, "bin", "rg")
    # Packages that were installed into a folder of their own have their programs in its bin.
    for folder in sys.path:
        yield os.path.join(folder, "bin", "rg")
