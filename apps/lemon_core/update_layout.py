"""The folder of installed releases, `~/.lemon/versions`, and the one link that an update moves.

```
versions/2026.10.3/   versions/2026.11.0/   versions/current -> 2026.11.0
```
A release is prepared in `<version>.partial` and renamed when it is whole; `current` is replaced by
a rename as well. So whenever an update is cut off, `current` is the old release or the new one, and
both are whole. What a cut leaves is removed by the next update. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lemon_core.calver import CalVer
from lemon_core.paths import PathSettings
from lemon_core.private_files import sync_folder
from lemon_core.update_archive import is_usable
from lemon_core.update_errors import UpdateRefused

KEPT_OLDER: Final = 2
_PARTIAL: Final = ".partial"
_DOWNLOAD: Final = "update-"
_SOURCE: Final = "source"


@dataclass(frozen=True, slots=True)
class Installation:
    """A Lemon that runs out of `versions`; `running` is the release of this process."""

    versions: Path
    downloads: Path
    running: CalVer

    @classmethod
    def find(cls, paths: PathSettings, program: Path) -> Installation:
        """The installation that `program`, a file of the running Lemon, belongs to.

        Raises `UpdateRefused` when it lies anywhere else than in `versions/<version>`, or when
        `current` is no link to a release.
        """
        versions = Path(os.path.realpath(paths.versions_dir))
        real = Path(os.path.realpath(program))
        if not real.is_relative_to(versions) or real == versions:
            raise UpdateRefused(
                f"this Lemon runs from {real.parent}, not from {paths.versions_dir}/<version>: "
                "update it the way it was installed"
            )
        name = real.relative_to(versions).parts[0]
        found = cls(versions, paths.download_dir, _version(name, versions / name))
        found.current()
        return found

    def current(self) -> CalVer:
        """The release that `current` points to; raises `UpdateRefused` for a foreign layout."""
        link = self.versions / "current"
        try:
            target = os.readlink(link)
        except OSError as exc:
            raise UpdateRefused(f"{link} is no link to a release: install Lemon again") from exc
        version = _version(target.rstrip("/"), link)
        if not (self.versions / str(version)).is_dir():
            raise UpdateRefused(f"{link} points to {version}, which is not there")
        return version

    def source(self) -> str | None:
        """Where the installer found its release: the address of a manifest, with places for
        channel and version."""
        try:
            return (self.versions / _SOURCE).read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def installed(self) -> list[CalVer]:
        """The whole releases, newest first."""
        found = []
        for path in self.versions.iterdir():
            with suppress(ValueError):
                version = CalVer.parse(path.name)
                if not path.is_symlink() and is_usable(path):
                    found.append(version)
        return sorted(found, reverse=True)

    def place(self, version: CalVer) -> Path:
        """Where a release is, or will be."""
        return self.versions / str(version)

    def staging(self, version: CalVer) -> Path:
        """Where a release is prepared."""
        return self.versions / f"{version}{_PARTIAL}"

    def new_download(self) -> Path:
        """A path for a new file, in a private folder."""
        self.downloads.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.downloads / f"{_DOWNLOAD}{secrets.token_hex(8)}.tar.gz"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who changes releases; raises `UpdateRefused` when somebody else does."""
        fd = os.open(self.versions / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise UpdateRefused("another update is at work: wait for its end") from exc
            yield
        finally:
            os.close(fd)

    def remove_leftovers(self) -> None:
        """Remove what updates that were cut off left; only under the lock."""
        for pattern in (f"*{_PARTIAL}", ".current.*"):
            for path in self.versions.glob(pattern):
                _remove(path)
        if self.downloads.is_dir():
            for path in self.downloads.glob(f"{_DOWNLOAD}*"):
                _remove(path)

    def remove_broken(self, version: CalVer) -> None:
        """Make the place of a release that is not whole free."""
        if version in (self.current(), self.running):
            raise UpdateRefused(f"{self.place(version)} is in use and not whole: install again")
        _remove(self.place(version))

    def install(self, version: CalVer) -> None:
        """Give the prepared release its name."""
        # All of its files are on the disk before anything can point to them.
        os.sync()
        os.rename(self.staging(version), self.place(version))
        sync_folder(self.versions)

    def flip(self, version: CalVer) -> None:
        """Make `current` point to `version`, at once."""
        beside = self.versions / f".current.{secrets.token_hex(8)}"
        try:
            beside.symlink_to(str(version))
            os.replace(beside, self.versions / "current")
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(self.versions)

    def withdraw(self, version: CalVer) -> None:
        """Take back a release that was installed and is not in use."""
        if self.current() != version:
            _remove(self.place(version))

    def prune(self) -> list[CalVer]:
        """Remove all releases but the one in use, the running one and the two newest others."""
        in_use = {self.current(), self.running}
        others = [version for version in self.installed() if version not in in_use]
        # The running one counts as one of the two that are kept.
        spare = KEPT_OLDER - (len(in_use) - 1)
        for version in others[spare:]:
            _remove(self.place(version))
        return others[spare:]


def _version(name: str, path: Path) -> CalVer:
    try:
        return CalVer.parse(name)
    except ValueError as exc:
        raise UpdateRefused(f"{path} is no installed release: {exc}") from exc


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
