"""Updates of an installation (specification lemon_core 15, lemon_cli 7)."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from lemon_core.calver import CalVer
from lemon_core.paths import PathSettings
from lemon_core.testing.releases import (
    MACHINE,
    ReleaseServer,
    archive_of,
    install,
    installation,
    member,
    release,
    release_server,
    seen,
)
from lemon_core.tests.processes import python, read_line
from lemon_core.update import Step, UpdateResult, Updates, Wanted
from lemon_core.update_errors import (
    ArtifactRefused,
    UpdateError,
    UpdateRefused,
    UpdateUnavailable,
)
from lemon_core.update_layout import Installation
from lemon_core.update_manifest import Machine
from lemon_core.update_source import MANIFEST_TIMEOUT_S, fetch_manifest

pytestmark = pytest.mark.anyio

OLD, NEW = "2026.10.3", "2026.11.0"
STABLE = Wanted.parse("stable", None)


@pytest.fixture
async def server() -> AsyncIterator[ReleaseServer]:
    with anyio.fail_after(10):
        async with release_server() as running:
            yield running


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    return PathSettings(tmp_path)


def updates(paths: PathSettings, server: ReleaseServer) -> Updates:
    return Updates(installation(paths, OLD, current=OLD), MACHINE, server.manifest_url)


def untouched() -> dict[str, object]:
    return {"current": OLD, "versions": [OLD, "current"], "downloads": []}


async def test_a_check_tells_what_is_new_and_changes_nothing(
    paths: PathSettings, server: ReleaseServer
) -> None:
    server.offer(NEW)
    result = await updates(paths, server).check(STABLE)
    assert result == UpdateResult(
        CalVer.parse(OLD), CalVer.parse(NEW), available=True, applied=False, restart_required=False
    )
    assert seen(paths) == untouched()
    assert server.requests == ["manifest.json"]


@pytest.mark.behaviour("lemon_core.42")
async def test_an_update_is_installed_and_rolled_back(
    paths: PathSettings, server: ReleaseServer
) -> None:
    server.offer(NEW)
    steps: list[tuple[Step, str]] = []
    sizes: list[tuple[int, int]] = []
    update = Updates(
        installation(paths, OLD, current=OLD),
        MACHINE,
        server.manifest_url,
        on_step=lambda step, version: steps.append((step, str(version))),
        on_bytes=lambda done, total: sizes.append((done, total)),
    )
    result = await update.apply(STABLE)
    assert result == UpdateResult(
        CalVer.parse(NEW), CalVer.parse(NEW), available=False, applied=True, restart_required=True
    )
    assert seen(paths) == {"current": NEW, "versions": [OLD, NEW, "current"], "downloads": []}
    program = paths.versions_dir / "current" / "bin" / "lemon"
    assert NEW in program.read_text()
    assert [step for step, _ in steps] == [
        "download",
        "unpack",
        "check",
        "install",
        "flip",
        "prune",
    ]
    total = len(server.files[f"lemon-{NEW}.tar.gz"])
    assert (sizes[0], sizes[-1]) == ((0, total), (total, total))
    back = await update.rollback()
    assert back == UpdateResult(
        CalVer.parse(OLD), None, available=False, applied=True, restart_required=False
    )
    assert seen(paths)["current"] == OLD
    # What is there already is used again, without a download.
    server.requests.clear()
    assert (await update.apply(STABLE)).applied
    assert server.requests == ["manifest.json"]
    assert seen(paths)["current"] == NEW


@pytest.mark.behaviour("lemon_core.42")
async def test_a_bad_checksum_is_refused(paths: PathSettings, server: ReleaseServer) -> None:
    update = updates(paths, server)
    server.offer(NEW, sha256="0" * 64)
    with pytest.raises(ArtifactRefused, match="checksum"):
        await update.apply(STABLE)
    assert seen(paths) == untouched()
    for value in (None, "", "A" * 64, "0" * 63, 5):
        server.offer(NEW, sha256=value)
        with pytest.raises(UpdateUnavailable, match="sha256"):
            await update.apply(STABLE)
    assert seen(paths) == untouched()


@pytest.mark.behaviour("lemon_core.42")
@pytest.mark.parametrize(
    "name", ["../x.tar.gz", "/x", "a/b", "..", ".", "", "a\\b", "http://x/y", " x", "a\0b"]
)
async def test_an_artifact_has_a_bare_file_name(
    paths: PathSettings, server: ReleaseServer, name: str
) -> None:
    server.offer(NEW, file=name)
    with pytest.raises(UpdateUnavailable, match=r"artifacts\.0\.file"):
        await updates(paths, server).apply(STABLE)
    assert seen(paths) == untouched()


@pytest.mark.behaviour("lemon_core.42")
async def test_a_member_that_leaves_the_release_is_refused(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    for bad in (
        member("../../evil", b"x"),
        member("/evil", b"x"),
        member("out", kind=tarfile.SYMTYPE, link="../.."),
        member("dev", kind=tarfile.CHRTYPE),
    ):
        server.offer(NEW, archive_of([*release(NEW), bad]))
        with pytest.raises(ArtifactRefused):
            await update.apply(STABLE)
        assert seen(paths) == untouched()


async def test_an_archive_without_its_executable_is_refused(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    server.offer(NEW, archive_of([member("bin/lemon", b"x", mode=0o644)]))
    with pytest.raises(ArtifactRefused, match="bin/lemon"):
        await update.apply(STABLE)
    assert seen(paths) == untouched()


async def test_a_download_that_is_cut_short_or_too_long_leaves_nothing(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    content = server.offer(NEW)
    server.cut.add(f"lemon-{NEW}.tar.gz")
    with pytest.raises(UpdateUnavailable, match="cannot be fetched"):
        await update.apply(STABLE)
    server.cut.clear()
    server.offer(NEW, content, size=len(content) + 1)
    with pytest.raises(ArtifactRefused, match="ended after"):
        await update.apply(STABLE)
    server.offer(NEW, content, size=len(content) - 1)
    with pytest.raises(ArtifactRefused, match="larger than"):
        await update.apply(STABLE)
    del server.files[f"lemon-{NEW}.tar.gz"]
    with pytest.raises(UpdateUnavailable, match="404"):
        await update.apply(STABLE)
    assert seen(paths) == untouched()


class Boom(Exception):
    """A failure at one step."""


@pytest.mark.behaviour("lemon_core.42")
@pytest.mark.parametrize("failing", ["download", "unpack", "check", "install", "flip"])
async def test_a_failure_before_the_flip_leaves_everything_as_it_was(
    paths: PathSettings, server: ReleaseServer, failing: Step
) -> None:
    server.offer(NEW)

    def fail(step: Step, version: CalVer) -> None:
        if step == failing:
            raise Boom

    home = installation(paths, OLD, current=OLD)
    with pytest.raises(Boom):
        await Updates(home, MACHINE, server.manifest_url, on_step=fail).apply(STABLE)
    assert seen(paths) == untouched()
    assert (await Updates(home, MACHINE, server.manifest_url).apply(STABLE)).applied


async def test_a_cancelled_update_leaves_everything_as_it_was(
    paths: PathSettings, server: ReleaseServer
) -> None:
    server.offer(NEW)
    home = installation(paths, OLD, current=OLD)
    for at in ("download", "unpack", "check", "install", "flip"):
        with anyio.CancelScope() as scope:

            def cancel(step: Step, version: CalVer, at: str = at) -> None:
                if step == at:
                    scope.cancel()

            await Updates(home, MACHINE, server.manifest_url, on_step=cancel).apply(STABLE)
        assert scope.cancelled_caught
        assert seen(paths) == untouched()


@pytest.mark.behaviour("lemon_core.42")
@pytest.mark.parametrize("at", ["download", "unpack", "check", "install", "flip", "prune"])
async def test_a_killed_update_leaves_a_whole_release_in_use(
    paths: PathSettings, server: ReleaseServer, at: str
) -> None:
    server.offer(NEW)
    program = install(paths, OLD, current=OLD)
    with python(KILLED, str(paths.home), str(program), server.manifest_url, at) as process:
        told = await anyio.to_thread.run_sync(read_line, process)
        assert told == at
        process.kill()
        process.wait(timeout=5)
    current = seen(paths)["current"]
    assert current == (NEW if at == "prune" else OLD)
    home = Installation.find(paths, program)
    assert home.current() in home.installed()
    result = await Updates(home, MACHINE, server.manifest_url).apply(STABLE)
    assert result.applied is (at != "prune")
    assert seen(paths) == {"current": NEW, "versions": [OLD, NEW, "current"], "downloads": []}


KILLED = """
import signal, sys, anyio
from pathlib import Path
from lemon_core.paths import PathSettings
from lemon_core.testing.releases import MACHINE
from lemon_core.update import Updates, Wanted
from lemon_core.update_layout import Installation

home, program, url, at = sys.argv[1:]

def stop(step, version):
    if step == at:
        print(step, flush=True)
        signal.pause()

found = Installation.find(PathSettings(Path(home)), Path(program))
anyio.run(Updates(found, MACHINE, url, on_step=stop).apply, Wanted.parse("stable", None))
"""


@pytest.mark.behaviour("lemon_core.42")
async def test_a_foreign_layout_is_refused(paths: PathSettings, tmp_path: Path) -> None:
    program = install(paths, OLD, current=OLD)
    elsewhere = tmp_path / "opt" / "lemon" / "lib" / "update.py"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    with pytest.raises(UpdateRefused, match="the way it was installed"):
        Installation.find(paths, elsewhere)
    odd = paths.versions_dir / "mine" / "lib" / "update.py"
    odd.parent.mkdir(parents=True)
    odd.touch()
    with pytest.raises(UpdateRefused, match="no installed release"):
        Installation.find(paths, odd)
    link = paths.versions_dir / "current"
    real = program.resolve()
    for target in ("2026.09.0", "mine", "../versions", str(tmp_path)):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(UpdateRefused):
            Installation.find(paths, real)
    link.unlink()
    link.mkdir()
    with pytest.raises(UpdateRefused, match="no link to a release"):
        Installation.find(paths, real)


async def test_two_older_releases_are_kept(paths: PathSettings, server: ReleaseServer) -> None:
    server.offer(NEW)
    kept = ("2026.07.0", "2026.08.0", "2026.09.0", OLD)
    home = installation(paths, *kept, current=OLD)
    (paths.versions_dir / "notes").mkdir()
    await Updates(home, MACHINE, server.manifest_url).apply(STABLE)
    assert seen(paths)["versions"] == ["2026.09.0", OLD, NEW, "current", "notes"]


async def test_the_running_release_stays_whatever_is_kept(
    paths: PathSettings, server: ReleaseServer
) -> None:
    server.offer(NEW)
    install(paths, "2026.06.0", "2026.08.0", "2026.09.0", OLD, current=OLD)
    program = paths.versions_dir / "2026.06.0" / "lib" / "update.py"
    home = Installation.find(paths, program)
    await Updates(home, MACHINE, server.manifest_url).apply(STABLE)
    assert seen(paths)["versions"] == ["2026.06.0", OLD, NEW, "current"]


async def test_an_older_or_equal_release_is_not_taken(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    for version in (OLD, "2026.10.2", "2026.10.3-rc.1"):
        server.offer(version)
        result = await update.apply(STABLE)
        assert (result.applied, result.available) == (False, False)
    assert seen(paths) == untouched()


async def test_a_broken_copy_of_the_release_is_replaced(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    (paths.versions_dir / NEW / "bin").mkdir(parents=True)
    server.offer(NEW)
    assert (await update.apply(STABLE)).applied
    assert (paths.versions_dir / NEW / "bin" / "lemon").exists()


async def test_a_rollback_needs_another_release(paths: PathSettings, server: ReleaseServer) -> None:
    update = updates(paths, server)
    (paths.versions_dir / "2026.09.0").mkdir()
    with pytest.raises(UpdateRefused, match="no other release"):
        await update.rollback()
    assert seen(paths)["current"] == OLD


async def test_two_updates_at_once_are_refused(paths: PathSettings, server: ReleaseServer) -> None:
    server.offer(NEW)
    update = updates(paths, server)
    home = Installation.find(paths, paths.versions_dir / OLD / "lib" / "update.py")
    with home.locked():
        for attempt in (update.apply(STABLE), update.rollback()):
            with pytest.raises(UpdateRefused, match="another update"):
                await attempt
    assert seen(paths) == untouched()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 1}, "schema 1"),
        ({"schema": None}, "schema None"),
        ({"schema": True}, "schema True"),
        ({"schema": 3, "artifacts": 5}, "schema 3"),
        ({"version": "../../x"}, "version"),
        ({"channel": "preview"}, "channel preview"),
        ({"channel": "other"}, "channel"),
        ({"artifacts": {}}, "artifacts"),
    ],
)
async def test_an_unusable_manifest_is_told(
    paths: PathSettings, server: ReleaseServer, change: dict[str, object], why: str
) -> None:
    server.offer(NEW, manifest=change)
    with pytest.raises(UpdateUnavailable, match=why):
        await updates(paths, server).check(STABLE)


async def test_a_source_that_does_not_answer_well_is_told(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    with pytest.raises(UpdateUnavailable, match="404"):
        await update.check(STABLE)
    for content in (b"<html>", b"[]", b"\xff", b"[" * 100_000, b" " * ((1 << 20) + 1)):
        server.files["manifest.json"] = content
        with pytest.raises(UpdateUnavailable):
            await update.check(STABLE)
    server.redirects["manifest.json"] = "ftp://example.org/x"
    with pytest.raises(UpdateUnavailable):
        await update.check(STABLE)
    for url in ("http://example.org/manifest.json", "file:///etc/passwd", "ftp://x/y", "https:"):
        home = Installation.find(paths, paths.versions_dir / OLD / "lib" / "update.py")
        with pytest.raises(UpdateUnavailable, match="no https address"):
            await Updates(home, MACHINE, url).check(STABLE)
    home = Installation.find(paths, paths.versions_dir / OLD / "lib" / "update.py")
    with pytest.raises(UpdateRefused, match="no update source"):
        await Updates(home, MACHINE, None).check(STABLE)


async def test_a_source_that_stays_silent_is_given_up(server: ReleaseServer) -> None:
    assert MANIFEST_TIMEOUT_S == 10
    server.silent = True
    with pytest.raises(UpdateUnavailable, match="in time"):
        await fetch_manifest(server.manifest_url, timeout_s=0.05)


@pytest.mark.behaviour("lemon_core.42")
async def test_the_link_to_the_release_in_use_is_there_at_every_moment(
    paths: PathSettings,
) -> None:
    home = installation(paths, OLD, NEW, current=OLD)
    link, seen_targets, done = paths.versions_dir / "current", set(), False

    def flip() -> None:
        nonlocal done
        for number in range(100):
            home.flip(CalVer.parse((NEW, OLD)[number % 2]))
        done = True

    def read() -> None:
        while not done:
            seen_targets.add(os.readlink(link))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, flip)
            tasks.start_soon(anyio.to_thread.run_sync, read)
    assert seen_targets <= {OLD, NEW}
    assert sorted(path.name for path in paths.versions_dir.iterdir()) == [OLD, NEW, "current"]


async def test_other_channels_need_an_exact_version(
    paths: PathSettings, server: ReleaseServer
) -> None:
    for channel in ("preview", "nightly"):
        with pytest.raises(UpdateRefused, match="exact version"):
            Wanted.parse(channel, None)
    for channel, version in (("beta", None), ("stable", "latest")):
        with pytest.raises(UpdateRefused):
            Wanted.parse(channel, version)
    wanted = Wanted.parse("preview", "2026.11.0-rc.1")
    server.offer("2026.11.0-rc.1", manifest={"channel": "preview"})
    server.files["preview/2026.11.0-rc.1.json"] = server.files["manifest.json"]
    server.files["preview/lemon-2026.11.0-rc.1.tar.gz"] = server.files[
        "lemon-2026.11.0-rc.1.tar.gz"
    ]
    home = installation(paths, OLD, current=OLD)
    update = Updates(home, MACHINE, f"{server.url}/{{channel}}/{{version}}.json")
    assert (await update.apply(wanted)).current == CalVer.parse("2026.11.0-rc.1")
    server.files["preview/2026.12.0.json"] = server.files["manifest.json"]
    with pytest.raises(UpdateUnavailable, match=r"offers 2026\.11\.0-rc\.1, not 2026\.12\.0"):
        await update.check(Wanted.parse("preview", "2026.12.0"))


async def test_only_an_archive_that_fits_the_machine_is_taken(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    server.offer(NEW, platform="darwin-arm64")
    with pytest.raises(UpdateRefused, match="no archive for linux-x86_64"):
        await update.apply(STABLE)
    server.offer(NEW, profile="full")
    with pytest.raises(UpdateRefused, match="profile runtime_min"):
        await update.apply(STABLE)
    server.offer(NEW, glibc_min="2.36")
    with pytest.raises(UpdateRefused, match=r"needs glibc 2\.36"):
        await update.apply(STABLE)
    assert seen(paths) == untouched()
    for profile in ("min", "runtime_min", "lemon_runtime_min"):
        server.offer(NEW, profile=profile, glibc_min=None)
        assert (await update.check(STABLE)).available
    assert (await update.apply(STABLE)).applied


def test_this_machine_is_told_in_the_words_of_the_manifest() -> None:
    def here(machine: str, libc: tuple[str, str]) -> Machine:
        return Machine.here("p", system="linux", machine=lambda: machine, libc=lambda: libc)

    assert here("aarch64", ("glibc", "2.31")) == Machine("linux-arm64", "p", (2, 31))
    assert here("AMD64", ("", "")) == Machine("linux-x86_64", "p", None)


async def test_a_disk_that_cannot_be_written_is_told(
    paths: PathSettings, server: ReleaseServer
) -> None:
    update = updates(paths, server)
    server.offer(NEW)
    paths.download_dir.write_text("a file in its place")
    with pytest.raises(UpdateError):
        await update.apply(STABLE)
    assert seen(paths)["current"] == OLD
