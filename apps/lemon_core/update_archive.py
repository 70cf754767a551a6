"""Unpacking a release: nothing of it may land, or point, outside its own folder. Blocking."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from lemon_core.update_errors import ArtifactRefused
from lemon_core.workspace import is_inside

EXECUTABLES: Final = ("bin/lemon",)
"""What every release has; without it a folder is no usable release."""
MAX_MEMBERS: Final = 200_000
MAX_BYTES: Final = 4 << 30


def unpack(
    archive: Path, folder: Path, *, max_bytes: int = MAX_BYTES, check: Callable[[], None]
) -> None:
    """Unpack `archive` into the new folder `folder`; raises `ArtifactRefused` and `OSError`.

    Files, folders and links that stay inside are taken, everything else is refused. `check` is
    called before each member and may raise to stop.
    """
    folder.mkdir(mode=0o755)
    # tarfile's own rules stand behind these; they have had holes where links and long paths meet.
    members = _Members(max_bytes)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                check()
                members.require_safe(member)
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as exc:
        raise ArtifactRefused(f"{archive.name} cannot be unpacked: {exc}") from exc
    _require_links_inside(folder)


def is_usable(folder: Path) -> bool:
    """Whether `folder` is a whole release: its executables are there and can be started."""
    inside = os.path.realpath(folder)
    for name in EXECUTABLES:
        real = os.path.realpath(folder / name)
        if not (is_inside(real, inside) and os.path.isfile(real) and os.access(real, os.X_OK)):
            return False
    return True


class _Members:
    """What came so far; later members are judged by it."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._names: set[str] = set()
        self._links: set[str] = set()

    def require_safe(self, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        # Some file systems take two spellings for one name.
        name = "/".join(parts).casefold()
        if len(self._names) >= MAX_MEMBERS:
            raise ArtifactRefused(f"the archive has more than {MAX_MEMBERS} members")
        if not (member.isreg() or member.isdir() or member.issym()):
            raise ArtifactRefused(f"{member.name!r} is neither file, folder nor symbolic link")
        if name in self._names and not member.isdir():
            raise ArtifactRefused(f"{member.name!r} is there twice")
        folders = ("/".join(parts[:count]).casefold() for count in range(1, len(parts) + 1))
        if not self._links.isdisjoint(folders):
            raise ArtifactRefused(f"{member.name!r} goes through a link")
        self._names.add(name)
        if member.issym():
            _require_target_inside(member, parts)
            self._links.add(name)
        self._left -= max(member.size, 0)
        if self._left < 0:
            raise ArtifactRefused("the archive unpacks to more than a release may take")


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise ArtifactRefused(f"{name!r} would land outside the release")
    return parts


def _require_target_inside(member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
    depth = len(parts) - 1
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise ArtifactRefused(f"the link {member.name!r} points outside the release")


def _require_links_inside(folder: Path) -> None:
    """What links mean together is only known when all of them are there."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path) and not is_inside(os.path.realpath(path), root):
                raise ArtifactRefused(f"the link {path!r} points outside the release")
