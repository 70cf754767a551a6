"""Finding, installing and taking back releases; a running Lemon is never restarted.

Everything before the flip of `current` can fail or be cut off at any point and leaves the release
in use as it was (see `update_layout`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from lemon_core.calver import CalVer
from lemon_core.update_archive import EXECUTABLES, is_usable, unpack
from lemon_core.update_errors import (
    ArtifactRefused,
    UpdateError,
    UpdateRefused,
    UpdateUnavailable,
)
from lemon_core.update_layout import Installation
from lemon_core.update_manifest import (
    CHANNELS,
    Channel,
    Machine,
    ReleaseManifest,
    choose_artifact,
)
from lemon_core.update_source import OnBytes, download, fetch_manifest

T = TypeVar("T")

UPDATE_URL_VARIABLE = "LEMON_UPDATE_MANIFEST_URL"

Step = Literal["download", "unpack", "check", "install", "flip", "prune"]
OnStep = Callable[[Step, CalVer], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which release is asked for; `version` None means the newest of the channel."""

    channel: Channel
    version: CalVer | None

    @classmethod
    def parse(cls, channel: str, version: str | None) -> Wanted:
        """Raises `UpdateRefused`: another channel than `stable` needs an exact version."""
        for known in CHANNELS:
            if known == channel:
                break
        else:
            raise UpdateRefused(f"there is no channel {channel!r:.40}: {', '.join(CHANNELS)}")
        if version is None and known != "stable":
            raise UpdateRefused(
                f"the channel {known} needs an exact version: give --version, or set "
                "runtime.pinned_version"
            )
        try:
            return cls(known, None if version is None else CalVer.parse(version))
        except ValueError as exc:
            raise UpdateRefused(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What was found and done. `restart_required`: the running release is not the one in use."""

    current: CalVer
    latest: CalVer | None
    available: bool
    applied: bool
    restart_required: bool


class Updates:
    """The releases of one installation; every method raises `UpdateError`."""

    def __init__(
        self,
        installation: Installation,
        machine: Machine,
        manifest_url: str | None,
        *,
        on_step: OnStep = lambda step, version: None,
        on_bytes: OnBytes = lambda done, total: None,
    ) -> None:
        self._installation, self._machine = installation, machine
        self._manifest_url = manifest_url
        self._on_step, self._on_bytes = on_step, on_bytes

    async def check(self, wanted: Wanted) -> UpdateResult:
        """Whether there is something newer; changes nothing."""
        manifest, _ = await self._manifest(wanted)
        return self._result(CalVer.parse(manifest.version))

    async def apply(self, wanted: Wanted) -> UpdateResult:
        """Install the release and make it the one in use; an older or equal one is not taken."""
        with self._installation.locked():
            await _in_thread(self._installation.remove_leftovers)
            manifest, url = await self._manifest(wanted)
            version = CalVer.parse(manifest.version)
            if version <= self._installation.current():
                return self._result(version)
            await self._put(manifest, url, version)
            self._on_step("prune", version)
            # What cannot be removed now goes with the next update.
            with suppress(OSError, UpdateRefused):
                await _in_thread(self._installation.prune)
            return self._result(version, applied=True)

    async def rollback(self) -> UpdateResult:
        """Make the newest other release that is kept the one in use."""
        with self._installation.locked():
            current = self._installation.current()
            others = await _in_thread(self._installation.installed)
            target = next((one for one in others if one != current), None)
            if target is None:
                raise UpdateRefused("no other release is kept here to go back to")
            self._on_step("flip", target)
            await _in_thread(lambda: self._installation.flip(target))
            return self._result(None, applied=True)

    async def _manifest(self, wanted: Wanted) -> tuple[ReleaseManifest, str]:
        if not self._manifest_url:
            raise UpdateRefused(
                "this build has no update source: set LEMON_UPDATE_MANIFEST_URL to the address "
                "of a release's manifest"
            )
        version = "latest" if wanted.version is None else str(wanted.version)
        url = self._manifest_url.replace("{channel}", wanted.channel)
        url = url.replace("{version}", version)
        manifest = await fetch_manifest(url)
        if manifest.channel != wanted.channel:
            raise UpdateUnavailable(f"{url} is of channel {manifest.channel}, not {wanted.channel}")
        if wanted.version not in (None, CalVer.parse(manifest.version)):
            raise UpdateUnavailable(f"{url} offers {manifest.version}, not {wanted.version}")
        return manifest, url

    async def _put(self, manifest: ReleaseManifest, url: str, version: CalVer) -> None:
        """Have the release installed and in use, or everything as before."""
        home = self._installation
        new = not is_usable(home.place(version))
        if new:
            await _in_thread(lambda: home.remove_broken(version))
            await self._fetch(manifest, url, version)
        try:
            self._on_step("flip", version)
            await _in_thread(lambda: home.flip(version))
        except BaseException:
            if new:
                await _cleanup(lambda: home.withdraw(version))
            raise

    async def _fetch(self, manifest: ReleaseManifest, url: str, version: CalVer) -> None:
        """Download, check and install the release next to the others."""
        home = self._installation
        artifact = choose_artifact(manifest, self._machine)
        archive = await _in_thread(home.new_download)
        try:
            self._on_step("download", version)
            await download(url, artifact, archive, self._on_bytes)
            self._on_step("unpack", version)
            await _in_thread(lambda: _unpack(archive, home.staging(version)))
            self._on_step("check", version)
            if not is_usable(home.staging(version)):
                raise ArtifactRefused(f"{artifact.file} has no {', '.join(EXECUTABLES)} to start")
            self._on_step("install", version)
            await _in_thread(lambda: home.install(version))
        except OSError as exc:
            raise UpdateError(f"{version} cannot be installed: {exc}") from exc
        finally:
            await _cleanup(home.remove_leftovers)

    def _result(self, latest: CalVer | None, *, applied: bool = False) -> UpdateResult:
        current = self._installation.current()
        return UpdateResult(
            current=current,
            latest=latest,
            available=latest is not None and latest > current,
            applied=applied,
            restart_required=current != self._installation.running,
        )


def _unpack(archive: Path, folder: Path) -> None:
    unpack(archive, folder, check=anyio.from_thread.check_cancelled)


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await anyio.to_thread.run_sync(work)
    except OSError as exc:
        raise UpdateError(f"the releases cannot be changed: {exc}") from exc


async def _cleanup(work: Callable[[], object]) -> None:
    # Removing a folder takes a moment, and a cancelled update has to leave nothing either.
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(work)
