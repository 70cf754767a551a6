"""Packs Lemon itself behind the packages, and says of the whole what is inside.

`pack_program --out ARCHIVE --facts JSON --packages PIECE --inventory JSON … PATH=SHORT_PATH…`
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from tools.release.archive import Content, Packed, checksums, new_piece
from tools.release.distributions import Distribution
from tools.release.sbom import Release, document

APP: Final = "lib/app"
SCRIPT: Final = "bin/lemon"
_BUILT: Final = "tools/release/built/"


def place_of(short_path: str, import_roots: Iterable[str]) -> str:
    """Where a file of this repository goes: below its import root, the longest that fits."""
    fitting = [root for root in import_roots if short_path.startswith(f"{root}/")]
    root = max(fitting, key=len, default="")
    return f"{APP}/{short_path.removeprefix(f'{root}/') if root else short_path}"


def own_files(
    files: Sequence[str], import_roots: Sequence[str], profile: str, scratch: Path
) -> dict[str, Content]:
    """The files of this repository with their bytecode, by their place in the archive."""
    contents: dict[str, Content] = {}
    for path, _, short in (text.partition("=") for text in sorted(files)):
        if short.startswith(_BUILT) and PurePosixPath(short).stem != profile:
            continue
        place = place_of(short, import_roots)
        contents[place] = Content(Path(path))
        if place.endswith(".py"):
            compiled = _compiled(Path(path), place, scratch)
            contents[_bytecode_place(place)] = Content(compiled)
    return contents


def _compiled(source: Path, place: str, scratch: Path) -> bytes:
    """The bytecode, good for as long as the two lie together: nobody changes a release."""
    target = scratch / "compiled.pyc"
    py_compile.compile(
        str(source),
        str(target),
        # A path of the build machine would make another archive of the same sources.
        dfile=place,
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return target.read_bytes()


def _bytecode_place(place: str) -> str:
    return importlib.util.cache_from_source(place)


def start_script(template: Path, release: Release) -> bytes:
    """The program that people call."""
    text = template.read_text(encoding="utf-8")
    text = text.replace("@VERSION@", release.version).replace("@PYTHON@", release.python)
    return text.encode()


def pack(
    release: Release,
    contents: Mapping[str, Content],
    packages: Path,
    known: Mapping[str, Any],
    out: Path,
) -> None:
    """Write the archive: the packages' piece, and one with all the rest."""
    files = [Packed(**row) for row in known["files"]]
    distributions = [Distribution.from_json(row) for row in known["distributions"]]
    with out.open("wb") as archive:
        with packages.open("rb") as first:
            shutil.copyfileobj(first, archive, 1 << 20)
        with new_piece(archive, is_last=True) as piece:
            files += piece.add_all(contents)
            about = {
                "release.json": Content(_as_json(asdict(release))),
                "sbom.spdx.json": Content(document(release, distributions, files)),
            }
            files += piece.add_all(about)
            piece.add_all({"SHA256SUMS": Content(checksums(files))})


def _as_json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def facts(release: Release, archive: Path, glibc_min: str | None) -> dict[str, object]:
    """What a manifest says of the archive (specification lemon_cli 7), and of the release."""
    system, _, architecture = release.platform.partition("-")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    row: dict[str, object] = {
        "file": f"{release.name}.tar.gz",
        "profile": release.profile,
        "platform": release.platform,
        "os": system,
        "arch": architecture,
        "sha256": digest.hexdigest(),
        "size": os.path.getsize(archive),
    }
    if glibc_min is not None and system == "linux":
        row["glibc_min"] = glibc_min
    return {**asdict(release), "artifact": row}


def label_in(status: str) -> str | None:
    """The commit that a build was told with `--embed_label`, from Bazel's workspace status."""
    for line in status.splitlines():
        name, _, value = line.partition(" ")
        if name == "BUILD_EMBED_LABEL":
            return value.strip() or None
    return None


def main(argv: Sequence[str] | None = None) -> None:
    """Write the archive and what a manifest says of it."""
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    for name in ("out", "facts", "packages", "inventory", "script", "status"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("version", "channel", "platform", "profile", "python"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--import-root", action="append", default=[])
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(argv)
    release = Release(
        options.version,
        options.channel,
        options.platform,
        options.profile,
        options.python,
        label_in(options.status.read_text(encoding="utf-8")),
    )
    known = json.loads(options.inventory.read_text(encoding="utf-8"))
    with TemporaryDirectory() as scratch:
        contents = own_files(options.files, options.import_root, release.profile, Path(scratch))
    contents[SCRIPT] = Content(start_script(options.script, release), executable=True)
    pack(release, contents, options.packages, known, options.out)
    options.facts.write_bytes(_as_json(facts(release, options.out, known["glibc_min"])))


if __name__ == "__main__":
    main()
