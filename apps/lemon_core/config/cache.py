"""Configurations by project, read again only when one of their files is another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lemon_core.clock import Clock
from lemon_core.config.fingerprints import Fingerprint, fingerprint
from lemon_core.config.load import LoadedConfig
from lemon_core.paths import PathSettings, project_config

CHECK_INTERVAL_MS: Final = 1_000
_MAX_ENTRIES: Final = 64

Key = tuple[Path, ...]


@dataclass(slots=True)
class _Entry:
    loaded: LoadedConfig
    seen: tuple[Fingerprint | None, ...]
    checked_ms: int


class ConfigCache:
    """The plain load for work in a directory, at most one look at the files per second.

    `load` reads; `files` names what a configuration for a directory is read from.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        load: Callable[[Path | None], LoadedConfig],
        files: Callable[[Path | None], tuple[Path, ...]],
    ) -> None:
        self._clock, self._load, self._files = clock, load, files
        self._entries: dict[Key, _Entry] = {}

    def get(self, cwd: Path | None = None) -> LoadedConfig:
        """The configuration for work in `cwd` (None: no project); raises what the load does."""
        key, now = self._key(cwd), self._clock.monotonic_ms()
        entry = self._entries.get(key)
        if entry is None:
            return self.reload(cwd)
        if now - entry.checked_ms >= CHECK_INTERVAL_MS:
            if _look(key) != entry.seen:
                return self.reload(cwd)
            entry.checked_ms = now
        return entry.loaded

    def reload(self, cwd: Path | None = None) -> LoadedConfig:
        """As `get`, read now whatever is remembered."""
        key = self._key(cwd)
        # Looked at before it is read: a change in between is then found at the next look.
        seen, now = _look(key), self._clock.monotonic_ms()
        loaded = self._load(cwd)
        self._entries.pop(key, None)
        while len(self._entries) >= _MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(loaded, seen, now)
        return loaded

    def forget(self) -> None:
        """Read everything again when it is next asked for."""
        self._entries.clear()

    def _key(self, cwd: Path | None) -> Key:
        return tuple(Path(os.path.realpath(path)) for path in self._files(cwd))


def config_files(cwd: Path | None, paths: PathSettings) -> tuple[Path, ...]:
    """The files that the configuration for work in `cwd` is read from, trust in it included."""
    project = () if cwd is None else (project_config(cwd), paths.trusted_projects)
    return (paths.config_file, *project)


def _look(key: Key) -> tuple[Fingerprint | None, ...]:
    return tuple(fingerprint(path) for path in key)
