"""Whether a project's code may be used, answered again only when something of it has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lemon_core.config.trust import TrustedProjects
from lemon_core.config.trusted_code import TooMuchCode, code_state
from lemon_core.paths import PathSettings, project_config

MAX_CACHED: Final = 256


class ProjectTrust:
    """One per runtime. Blocking: it looks at the files of the project's `.lemon`."""

    def __init__(self, paths: PathSettings) -> None:
        self._paths = paths
        self._projects = TrustedProjects(paths)
        self._known: dict[Path, tuple[object, bool]] = {}

    def __call__(self, directory: Path) -> bool:
        """True when the owner trusts `directory` with its files as they are now."""
        list_mark = _mark(self._paths.trusted_projects)
        if list_mark is None:
            return False
        try:
            mark = (list_mark, _mark(project_config(directory)), code_state(directory))
        except TooMuchCode:
            return False
        known = self._known.get(directory)
        if known is not None and known[0] == mark:
            return known[1]
        answer = self._projects.is_trusted(directory)
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[directory] = (mark, answer)
        return answer


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode)
