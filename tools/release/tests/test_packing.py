"""The pieces of an archive, made of small packages (specification lemon_cli 7)."""

from __future__ import annotations

import io
import json
import marshal
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.release import pack_packages, pack_program
from tools.release.archive import MTIME_S

GPL = "GPL text"


def package(
    root: Path, name: str, metadata: Sequence[str] = ("License: MIT",), tag: str = "py3-none-any"
) -> Path:
    """A folder as the build installs a package into it."""
    site = root / name / "site"
    module, info = site / name, site / f"{name}-1.0.dist-info"
    module.mkdir(parents=True)
    info.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *metadata, "", "text"]
    (info / "METADATA").write_text("\n".join(lines))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
    (info / "INSTALLER").write_text("pip")
    (info / "LICENSE").write_text(f"licence of {name}")
    (module / "__init__.py").write_text("")
    return site


def pack(root: Path, *sites: Path, name: str = "packages") -> tuple[Path, dict[str, object]]:
    """The packages' piece and its inventory."""
    piece, inventory = root / f"{name}.tar.gz", root / f"{name}.json"
    texts = sorted((root / "licences").rglob("*.txt"))
    pack_packages.main(
        [
            f"--out={piece}",
            f"--inventory={inventory}",
            *(f"--licence={path}" for path in texts),
            *(f"{site}=../pypi/{site.parent.name}/site" for site in sites),
            f"{root}/BUILD.bazel=../pypi/BUILD.bazel",
        ]
    )
    return piece, json.loads(inventory.read_text())


def build(root: Path, *sites: Path, name: str = "archive") -> Path:
    """A whole archive of two small sources and the packages."""
    pack(root, *sites)
    source = root / "apps" / "app" / "main.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("ANSWER = 42\n")
    generated = root / "built"
    generated.mkdir(exist_ok=True)
    (generated / "small.toml").write_text("name = 'small'")
    script = root / "script.sh"
    script.write_text("#!/bin/sh\necho @VERSION@ @PYTHON@\n")
    (root / "status.txt").write_text("BUILD_EMBED_LABEL abc123\nBUILD_USER someone\n")
    out = root / f"{name}.tar.gz"
    pack_program.main(
        [
            f"--out={out}",
            f"--facts={root}/facts.json",
            f"--packages={root}/packages.tar.gz",
            f"--inventory={root}/packages.json",
            f"--script={script}",
            "--version=2026.11.0",
            "--channel=stable",
            "--platform=linux-x86_64",
            "--profile=small",
            "--python=3.11",
            f"--status={root}/status.txt",
            "--import-root=apps",
            f"{source}=apps/app/main.py",
            f"{generated}/small.toml=tools/release/built/small.toml",
            f"{generated}/small.toml=tools/release/built/other.toml",
        ]
    )
    return out


def names(archive: Path) -> list[str]:
    """The files of an archive."""
    with tarfile.open(archive) as tar:
        return [member.name for member in tar if member.isfile()]


def content(archive: Path, name: str) -> bytes:
    """One file of an archive."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_an_archive_holds_programs_packages_and_what_is_said_of_them(tmp_path: Path) -> None:
    archive = build(tmp_path, package(tmp_path, "one"), package(tmp_path, "two"))
    bytecode = [name for name in names(archive) if name.endswith(".pyc")]
    assert [re.sub(r"cpython-\d+", "x", name) for name in bytecode] == [
        "lib/app/app/__pycache__/main.x.pyc"
    ]
    assert sorted(set(names(archive)) - set(bytecode)) == [
        "LICENSES/one-1.0/LICENSE",
        "LICENSES/two-1.0/LICENSE",
        "SHA256SUMS",
        "bin/lemon",
        "lib/app/app/main.py",
        "lib/app/tools/release/built/small.toml",
        "lib/site/one-1.0.dist-info/LICENSE",
        "lib/site/one-1.0.dist-info/METADATA",
        "lib/site/one-1.0.dist-info/WHEEL",
        "lib/site/one/__init__.py",
        "lib/site/two-1.0.dist-info/LICENSE",
        "lib/site/two-1.0.dist-info/METADATA",
        "lib/site/two-1.0.dist-info/WHEEL",
        "lib/site/two/__init__.py",
        "release.json",
        "sbom.spdx.json",
    ]
    assert content(archive, "bin/lemon") == b"#!/bin/sh\necho 2026.11.0 3.11\n"
    assert json.loads(content(archive, "release.json"))["commit"] == "abc123"
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["artifact"]["file"] == "lemon-2026.11.0-stable-linux-x86_64-small.tar.gz"
    assert facts["artifact"]["size"] == archive.stat().st_size


def test_the_same_contents_make_the_same_bytes(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    archives = []
    for place in places:
        place.mkdir()
        sites = [package(place, "two"), package(place, "one")]
        archives.append(build(place, *(sites if place == places[0] else sites[::-1])))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        members = tar.getmembers()
    assert {(one.mtime, one.uid, one.gid, one.uname) for one in members} == {
        (MTIME_S, 0, 0, "root")
    }
    assert {one.mode for one in members} == {0o644, 0o755}


@pytest.mark.parametrize("status", ["", "BUILD_EMBED_LABEL \nBUILD_HOST x\n", "BUILD_HOST x\n"])
def test_a_build_that_was_told_no_commit_tells_none(status: str) -> None:
    assert pack_program.label_in(status) is None


def test_bytecode_is_good_wherever_it_lies(tmp_path: Path) -> None:
    archive = build(tmp_path, package(tmp_path, "one"))
    name = next(name for name in names(archive) if name.endswith(".pyc"))
    compiled = content(archive, name)
    # PEP 552: bit 0 says that the file is valid by hash, bit 1 would have it checked.
    assert int.from_bytes(compiled[4:8], "little") == 0b01
    code = marshal.load(io.BytesIO(compiled[16:]))
    assert code.co_filename == "lib/app/app/main.py"


def test_each_package_is_in_the_bill_with_its_licence(tmp_path: Path) -> None:
    sites = [
        package(tmp_path, "one", ["License-Expression: Apache-2.0", "Requires-Dist: Two_>=1"]),
        package(tmp_path, "two", ["License: BSD", "Requires-Dist: one; extra == 'x'"]),
    ]
    sites[1].joinpath("two-1.0.dist-info", "METADATA").write_text(
        "Metadata-Version: 2.4\nName: Two_\nVersion: 1.0\nLicense: BSD\n"
    )
    bill = json.loads(content(build(tmp_path, *sites), "sbom.spdx.json"))
    found = {one["name"]: (one["licenseDeclared"], one["versionInfo"]) for one in bill["packages"]}
    assert found == {
        "lemon": ("NOASSERTION", "2026.11.0"),
        "one": ("Apache-2.0", "1.0"),
        "two-": ("NOASSERTION", "1.0"),
    }
    assert [one["licenseComments"] for one in bill["packages"] if "licenseComments" in one] == [
        "The package says: BSD"
    ]
    kinds = [
        (one["spdxElementId"], one["relationshipType"], one["relatedSpdxElement"])
        for one in bill["relationships"]
    ]
    assert ("SPDXRef-Package-pypi-one", "DEPENDS_ON", "SPDXRef-Package-pypi-two-") in kinds
    assert ("SPDXRef-Package-lemon", "CONTAINS", "SPDXRef-Package-pypi-two-") in kinds


def test_a_package_without_a_licence_text_is_refused(tmp_path: Path) -> None:
    site = package(tmp_path, "bare")
    (site / "bare-1.0.dist-info" / "LICENSE").unlink()
    with pytest.raises(ValueError, match=r"bare-1\.0 brings no licence"):
        pack(tmp_path, site)
    kept = tmp_path / "licences" / "bare"
    kept.mkdir(parents=True)
    (kept / "MIT.txt").write_text("MIT text")
    piece, _ = pack(tmp_path, site)
    assert content(piece, "LICENSES/bare-1.0/MIT.txt") == b"MIT text"


def test_what_the_build_machine_lent_is_named(tmp_path: Path) -> None:
    site = package(tmp_path, "llama")
    (site / "llama" / "libgomp.so.1").write_bytes(b"ELF")
    kept = tmp_path / "licences" / "libgomp1"
    kept.mkdir(parents=True)
    (kept / "GPL-3.txt").write_text(GPL)
    piece, inventory = pack(tmp_path, site)
    assert content(piece, "LICENSES/libgomp1/GPL-3.txt") == GPL.encode()
    rows = inventory["distributions"]
    assert isinstance(rows, list)
    assert [one["name"] for one in rows] == ["libgomp1", "llama"]
    (site / "llama" / "libother.so").write_bytes(b"ELF")
    with pytest.raises(ValueError, match="belongs to no package"):
        pack(tmp_path, site)


def test_scripts_of_the_build_machine_and_tests_stay_out(tmp_path: Path) -> None:
    site = package(tmp_path, "tool")
    for path, text in {
        "bin/tool": b"#!/opt/python\n",
        "bin/rg": b"\x7fELF",
        "tool/tests/test_x.py": b"",
    }.items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_bytes(text)
    piece, _ = pack(tmp_path, site)
    found = [name for name in names(piece) if "dist-info" not in name]
    assert found == ["LICENSES/tool-1.0/LICENSE", "lib/site/bin/rg", "lib/site/tool/__init__.py"]
    with tarfile.open(piece) as tar:
        assert tar.getmember("lib/site/bin/rg").mode == 0o755


def test_two_packages_may_not_fight_over_a_file(tmp_path: Path) -> None:
    sites = [package(tmp_path, "one"), package(tmp_path, "two")]
    for number, site in enumerate(sites):
        (site / "shared.py").write_text(str(number))
    with pytest.raises(ValueError, match=r"two packages have the file lib/site/shared\.py"):
        pack(tmp_path, *sites)


@pytest.mark.parametrize(
    ("tag", "needed"),
    [
        ("py3-none-any", None),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", "2.17"),
        ("cp311-cp311-manylinux2014_x86_64", "2.17"),
        ("cp311-abi3-manylinux_2_34_x86_64", "2.34"),
        ("cp311-cp311-manylinux_2_5_x86_64.manylinux1_x86_64", "2.5"),
    ],
)
def test_the_c_library_that_is_needed_is_told(tmp_path: Path, tag: str, needed: str | None) -> None:
    _, inventory = pack(tmp_path, package(tmp_path, "one", tag=tag))
    assert inventory["glibc_min"] == needed


def test_a_piece_without_its_end_is_the_beginning_of_an_archive(tmp_path: Path) -> None:
    piece, _ = pack(tmp_path, package(tmp_path, "one"))
    assert names(piece)[0] == "LICENSES/one-1.0/LICENSE"
    assert len(names(build(tmp_path, package(tmp_path / "x", "two")))) > 5
