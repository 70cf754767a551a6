"""Packs the packages from PyPI: the first piece of every archive, and the inventory of it.

`pack_packages --out PIECE --inventory JSON --licence FILE… FOLDER=SHORT_PATH…`
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tools.release.archive import Content, Packed, new_piece
from tools.release.distributions import (
    Distribution,
    declared_licence,
    glibc_of,
    licence_files,
    normalised,
    read_distribution,
    requirements,
)

SITE: Final = "lib/site"
LICENCES: Final = "LICENSES"
# What the build machine lent to packages (third_party/python/add_libraries.py): name, licence.
LENT: Final = {"libgomp.so.1": ("libgomp1", "GPL-3.0-or-later WITH GCC-exception-3.1")}
# ELF and Mach-O.
_PROGRAM_MAGIC: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
# They tell how the package was installed, and where, on the machine that packed it.
_LEFT_OUT: Final = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})


class Packages:
    """The files of all packages, by their place in the archive."""

    def __init__(self, licences: Sequence[Path]) -> None:
        self._licences = licences
        self.contents: dict[str, Content] = {}
        self.distributions: list[Distribution] = []
        self.glibc = (0, 0)

    def add(self, site: Path) -> None:
        """Take the package in `site`; raises ValueError when no licence of it is known."""
        found, info = read_distribution(site)
        name, version = normalised(found.metadata["Name"]), found.version
        licence, declared = declared_licence(found)
        for path, source in _files(site):
            self._put(f"{SITE}/{path}", source)
        texts = [*licence_files(site, info), *self._texts_for(name)]
        self.distributions.append(
            Distribution(
                name,
                version,
                licence,
                declared,
                requirements(found),
                self._put_licences(f"{name}-{version}", texts),
            )
        )
        self.glibc = max(self.glibc, glibc_of(found))
        self._add_lent(site, found.read_text("RECORD") or "")

    def _add_lent(self, site: Path, record: str) -> None:
        """Name the libraries that lie beside the package's own files."""
        recorded = {row[0] for row in csv.reader(record.splitlines()) if row}
        for path, _ in _files(site):
            if ".so" not in path or path in recorded:
                continue
            if PurePosixPath(path).name not in LENT:
                raise ValueError(f"{site}/{path} belongs to no package: whose is it?")
            name, licence = LENT[PurePosixPath(path).name]
            files = self._put_licences(name, self._texts_for(name))
            self.distributions.append(Distribution(name, "", licence, licence, (), files))

    def _texts_for(self, name: str) -> list[tuple[str, Path]]:
        """The texts that this repository keeps for a package that brings none."""
        return [(path.name, path) for path in self._licences if path.parent.name == name]

    def _put_licences(self, folder: str, texts: Sequence[tuple[str, Path]]) -> tuple[str, ...]:
        if not texts:
            raise ValueError(
                f"{folder} brings no licence: put its text into tools/release/licences/<name>"
            )
        paths = []
        for short, source in texts:
            path = f"{LICENCES}/{folder}/{short}"
            self._put(path, source)
            paths.append(path)
        return tuple(paths)

    def _put(self, path: str, source: Path) -> None:
        before = self.contents.get(path)
        if before is not None and _bytes(before.source) != source.read_bytes():
            raise ValueError(f"two packages have the file {path}, and they differ")
        self.contents[path] = Content(source, executable=path.startswith(f"{SITE}/bin/"))


def _bytes(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _files(site: Path) -> Iterator[tuple[str, Path]]:
    """What a package runs with: not its tests, and no scripts with the path of some Python."""
    for source in sorted(site.rglob("*")):
        path = source.relative_to(site)
        if not source.is_file() or "tests" in path.parts[:-1]:
            continue
        if path.parts[0] == "bin" and not _is_program(source):
            continue
        if path.parent.suffix == ".dist-info" and path.name in _LEFT_OUT:
            continue
        yield path.as_posix(), source


def _is_program(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(4) in _PROGRAM_MAGIC


def inventory(packed: Sequence[Packed], packages: Packages) -> dict[str, object]:
    """What the second program has to know of this piece."""
    return {
        "files": [one.as_json() for one in packed],
        "distributions": [
            one.as_json() for one in sorted(packages.distributions, key=lambda one: one.name)
        ],
        "glibc_min": ".".join(map(str, packages.glibc)) if any(packages.glibc) else None,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Write the piece and its inventory."""
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inventory", type=Path, required=True)
    parser.add_argument("--licence", type=Path, action="append", default=[])
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args(argv)
    packages = Packages(options.licence)
    # Only the folders: a package's BUILD file is no part of it.
    for path, _, short in (text.partition("=") for text in sorted(options.folders)):
        if short.endswith("/site"):
            packages.add(Path(path))
    with options.out.open("wb") as out, new_piece(out, is_last=False) as piece:
        packed = piece.add_all(packages.contents)
    options.inventory.write_text(json.dumps(inventory(packed, packages)), encoding="utf-8")


if __name__ == "__main__":
    main()
