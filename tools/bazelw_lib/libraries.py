"""Shared libraries that wheels expect of every system, and that a bare Debian lacks.

They come from the release the machine runs, not from the suite that has Bazel: they are loaded
beside the machine's own C library, which must be new enough for them.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tools.bazelw_lib import apt_sources
from tools.bazelw_lib.apt_state import AptState
from tools.bazelw_lib.exclusive import exclusive
from tools.bazelw_lib.paths import Cache
from tools.bazelw_lib.report import BazelwError, say

# OpenMP's runtime: the engine of the embedded model is linked with it.
PACKAGES = {"libgomp.so.1": "libgomp1"}


def missing(load: Callable[[str], object] = ctypes.CDLL) -> list[str]:
    """Return the libraries of `PACKAGES` that the machine's loader does not find."""
    absent = []
    for library in PACKAGES:
        try:
            load(library)
        except OSError:
            absent.append(library)
    return absent


def ensure(cache: Cache) -> Path | None:
    """Return a folder with the missing libraries; None when none is missing or none can be had.

    Without them Bazel and most of the product work, so this only tells what will not.
    """
    absent = missing()
    if not absent:
        return None
    codename = apt_sources.release_codename()
    folder = cache.libraries(codename)
    if all((folder / library).exists() for library in absent):
        return folder
    with exclusive(cache.lock):
        try:
            _fetch(absent, codename, folder, AptState(cache.home / "bazel" / "apt-libraries"))
        except BazelwError as error:
            names = ", ".join(PACKAGES[library] for library in absent)
            say(f"could not get {names}; install it for the embedded model ({error})")
            return None
    return folder


def _fetch(absent: list[str], codename: str, folder: Path, apt: AptState) -> None:
    names = [PACKAGES[library] for library in absent]
    say(f"fetching {', '.join(names)} of Debian {codename}, which this machine lacks (once)")
    reason = BazelwError("apt on this machine knows no Debian archive")
    for source in apt_sources.machine_archives():
        apt.prepare(source.for_suite(codename))
        try:
            apt.update()
            files = apt.planned(names)
            downloads = apt.download(names, lambda _: None)
        except BazelwError as error:
            reason = error
            continue
        _unpack([downloads / file for file in files], absent, folder)
        shutil.rmtree(apt.home, ignore_errors=True)
        return
    raise reason


def _unpack(debs: list[Path], absent: list[str], folder: Path) -> None:
    tree = folder.with_name(folder.name + ".partial")
    shutil.rmtree(tree, ignore_errors=True)
    for deb in debs:
        done = subprocess.run(["dpkg", "-x", deb, tree], capture_output=True, check=False)
        if done.returncode != 0:
            raise BazelwError(f"dpkg could not unpack {deb.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for library in absent:
        found = next(iter(sorted(tree.rglob(library))), None)
        if found is None:
            raise BazelwError(f"{PACKAGES[library]} has no {library}")
        # copy() follows the link from the short name to the file.
        shutil.copy(found, folder / f".{library}")
        (folder / f".{library}").replace(folder / library)
    shutil.rmtree(tree)
