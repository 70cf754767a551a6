"""What may be in the archive of a release (specification lemon_core 15)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from lemon_core.testing.releases import archive_of, member, release
from lemon_core.update_archive import is_usable, unpack
from lemon_core.update_errors import ArtifactRefused

Member = tuple[tarfile.TarInfo, bytes]


def unpacked(tmp_path: Path, content: bytes, *, max_bytes: int = 1 << 20) -> Path:
    archive, folder = tmp_path / "x.tar.gz", tmp_path / "out"
    archive.write_bytes(content)
    unpack(archive, folder, max_bytes=max_bytes, check=lambda: None)
    return folder


def link(name: str, target: str) -> Member:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def test_a_release_is_unpacked_with_its_executables_and_links(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, archive_of(release("2026.11.0")))
    assert is_usable(folder)
    assert (folder / "bin" / "python").read_bytes() == b"ELF"
    assert not (folder / "lib" / "lemon_core" / "version.py").stat().st_mode & 0o111


@pytest.mark.behaviour("lemon_core.42")
@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/evil", b"x")],
        [member("../evil", b"x")],
        [member("bin/../../evil", b"x")],
        [member("bin/..", kind=tarfile.DIRTYPE)],
        [member("a\\..\\evil", b"x")],
        [link("out", "/etc")],
        [link("out", "..")],
        [link("bin/out", "../../x")],
        [link("out", "a/../../x")],
        [link("out", "."), member("out/evil", b"x")],
        [link("out", "lib"), link("OUT/deep", "x")],
        [member("a/b/c", b"x"), link("a/b/d", "../../s"), link("e", "a/b/d/../..")],
        [member("hard", kind=tarfile.LNKTYPE, link="bin/lemon")],
        [member("hard", kind=tarfile.LNKTYPE, link="/etc/passwd")],
        [member("dev", kind=tarfile.CHRTYPE)],
        [member("dev", kind=tarfile.BLKTYPE)],
        [member("pipe", kind=tarfile.FIFOTYPE)],
        [member("a", b"x"), member("a", b"y")],
        [member("a", b"x"), member("A", b"y")],
        [link("a", "b"), member("a", b"x")],
    ],
)
def test_what_lands_or_points_outside_is_refused(tmp_path: Path, members: list[Member]) -> None:
    with pytest.raises(ArtifactRefused):
        unpacked(tmp_path, archive_of([*release("2026.11.0"), *members]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.tar.gz"]


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match="more than a release"):
        unpacked(tmp_path, archive_of([member("zeros", bytes(2_000))]), max_bytes=1_999)


@pytest.mark.parametrize("cut", [0, 1, 30, 150, -40])
def test_a_damaged_archive_is_told(tmp_path: Path, cut: int) -> None:
    whole = archive_of(release("2026.11.0"))
    with pytest.raises(ArtifactRefused, match="cannot be unpacked"):
        unpacked(tmp_path, whole[:cut])


def test_no_archive_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match="cannot be unpacked"):
        unpacked(tmp_path, b"<html>not found</html>")


def test_a_release_needs_an_executable_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    (folder / "bin").mkdir(parents=True)
    lemon = folder / "bin" / "lemon"
    assert not is_usable(folder)
    lemon.write_text("x")
    lemon.chmod(0o644)
    assert not is_usable(folder)
    lemon.chmod(0o755)
    assert is_usable(folder)
    lemon.unlink()
    lemon.symlink_to("/bin/sh")
    assert not is_usable(folder)
