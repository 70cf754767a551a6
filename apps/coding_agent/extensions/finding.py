"""Where extensions may lie, which of these places count, and what lies there.

Code runs from the paths of `runtime.extension_paths`, and from the two usual folders when
`runtime.extensions.auto_load_default_paths` says so; what belongs to a project needs the project's
trust as well. Everything else is looked at and not imported: this module reads names and
manifests alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lemon_core.config.model import LemonConfig
from lemon_core.extensions import ExtensionManifest, ManifestInvalid, manifest_file, read_manifest
from lemon_core.paths import PathSettings
from lemon_core.workspace import is_inside

Source = Literal["configured", "agent", "project"]
MAX_PER_PLACE: Final = 200
FOLDER: Final = "extensions"


@dataclass(frozen=True, slots=True)
class Place:
    """A path with extensions; `obstacle` says why nothing of it is loaded."""

    path: Path
    source: Source
    obstacle: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An extension that was found: `path` is its module's file or its package's folder, `real` the
    same without links."""

    name: str
    path: Path
    real: str
    place: Place
    manifest: ExtensionManifest | None = None
    problem: str | None = None

    @property
    def obstacle(self) -> str | None:
        """Why it is not loaded although nothing is wrong with it."""
        return self.place.obstacle

    def listed(self) -> dict[str, object]:
        """What is told of one that is not loaded."""
        return {
            "name": self.name,
            "path": str(self.path),
            "source": self.place.source,
            "reason": self.obstacle,
        }


@dataclass(frozen=True, slots=True)
class ExtensionSettings:
    """What the configuration says. `relative` are paths from below `project`, the directory that
    Lemon was started in: they count only where that is trusted, since a cloned repository chooses
    what lies at them."""

    enabled: bool
    auto_load: bool
    absolute: tuple[Path, ...]
    relative: tuple[Path, ...]
    project: Path
    agent_dir: Path

    @classmethod
    def of(
        cls, config: LemonConfig, paths: PathSettings, cwd: Path, agent_dir: Path
    ) -> ExtensionSettings:
        """The settings as they are now."""
        runtime = config.runtime
        expanded = [paths.expand(text) for text in runtime.extension_paths]
        return cls(
            enabled=runtime.extensions.enabled,
            auto_load=runtime.extensions.auto_load_default_paths,
            absolute=tuple(path for path in expanded if path.is_absolute()),
            relative=tuple(cwd / path for path in expanded if not path.is_absolute()),
            project=cwd,
            agent_dir=agent_dir,
        )

    @property
    def loads_any(self) -> bool:
        """Whether any place may be loaded at all; where not, runs pay nothing for extensions."""
        return self.enabled and (self.auto_load or bool(self.absolute or self.relative))


def own_places(settings: ExtensionSettings, is_trusted: Callable[[Path], bool]) -> list[Place]:
    """The places that every run sees: the configured ones and the agent's own folder."""
    off = None if settings.enabled else "extensions are switched off (runtime.extensions.enabled)"
    needs = off or (
        _untrusted(settings.project)
        if settings.relative and not is_trusted(settings.project)
        else None
    )
    return [
        *(Place(path, "configured", off) for path in settings.absolute),
        *(Place(path, "configured", needs) for path in settings.relative),
        Place(settings.agent_dir / FOLDER, "agent", off or _default_off(settings)),
    ]


def project_place(
    settings: ExtensionSettings, cwd: Path, is_trusted: Callable[[Path], bool]
) -> Place | None:
    """The folder of the project in `cwd`; None when it has none."""
    folder = cwd / ".lemon" / FOLDER
    if not folder.is_dir():
        return None
    if not settings.enabled:
        return Place(folder, "project", "extensions are switched off (runtime.extensions.enabled)")
    if (obstacle := _default_off(settings)) is not None:
        return Place(folder, "project", obstacle)
    return Place(folder, "project", None if is_trusted(cwd) else _untrusted(cwd))


def scan(places: Sequence[Place]) -> list[Candidate]:
    """What lies there, by place and name; each path once. Nothing is imported."""
    found: dict[str, Candidate] = {}
    for place in places:
        for count, path in enumerate(_modules(place.path)):
            if count == MAX_PER_PLACE:
                break
            real = os.path.realpath(path)
            if real not in found:
                found[real] = _candidate(path, real, place)
    return list(found.values())


def _modules(path: Path) -> Iterator[Path]:
    """The modules and packages that `path` is or holds."""
    if _is_module(path):
        yield path
        return
    try:
        entries = sorted(path.iterdir())
    except OSError:
        return
    yield from (entry for entry in entries if entry.name[0] not in "._" and _is_module(entry))


def _is_module(path: Path) -> bool:
    return path.is_file() if path.suffix == ".py" else (path / "__init__.py").is_file()


def _candidate(path: Path, real: str, place: Place) -> Candidate:
    manifest: ExtensionManifest | None = None
    problem = _open_to_others(path)
    if place.source == "project" and not is_inside(real, os.path.realpath(place.path)):
        problem = f"{path}: is a link that leads out of the project's folder"
    if path.is_dir() and (file := manifest_file(path)) is not None:
        try:
            manifest = read_manifest(file)
        except ManifestInvalid as exc:
            problem = problem or str(exc)
    if manifest is not None and problem is None:
        problem = _unfit(manifest)
    name = manifest.name if manifest else path.stem
    return Candidate(name, path, real, place, manifest, problem)


def _unfit(manifest: ExtensionManifest) -> str | None:
    if manifest.host is not None and manifest.host.type != "python":
        return f"its manifest says that it runs in {manifest.host.type}, not in Python"
    if manifest.audit is not None and manifest.audit.status == "blocked":
        return "its manifest says that an audit has blocked it"
    return None


def _open_to_others(path: Path) -> str | None:
    """What is wrong with a file that anybody on this machine could have written."""
    for part in (path, path / "__init__.py") if path.suffix != ".py" else (path,):
        try:
            status = part.stat()
        except OSError as exc:
            return f"{part}: cannot be read ({exc.strerror})"
        if status.st_uid not in (os.geteuid(), 0):
            return f"{part}: belongs to another user"
        if stat.S_IMODE(status.st_mode) & 0o002:
            return f"{part}: everybody may write it: chmod o-w"
    return None


def _default_off(settings: ExtensionSettings) -> str | None:
    if settings.auto_load:
        return None
    return "runtime.extensions.auto_load_default_paths is off"


def _untrusted(directory: Path) -> str:
    return f"the project is not trusted: lemon config trust {directory}"
