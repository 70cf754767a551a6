"""Looks for a Bazel that the machine already has."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.bazelw_lib.report import BazelwError

# Written into the `bazel` that `tools/bazelw install` makes: it leads back here.
WRAPPER_MARK = "made by tools/bazelw install"
# The value of LEMON_BAZEL for a machine whose own Bazel or Bazelisk reaches no registry.
DEBIAN = "debian"
# Enough for a Bazelisk under another name to fetch the release it was told to be.
_ANSWER_SECONDS = 300


def fitting_bazel(environ: Mapping[str, str], wanted: str, workspace: Path) -> str | None:
    """Return the Bazel to use: `LEMON_BAZEL`, else one of the wanted major version, else Bazelisk.

    None means Debian's: the machine has neither, or `LEMON_BAZEL=debian` asks for it. A wrong
    `LEMON_BAZEL` is an error, not a reason to look further.
    """
    chosen = environ.get("LEMON_BAZEL")
    if chosen == DEBIAN:
        return None
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise BazelwError(f"LEMON_BAZEL={chosen} is not a program that can be run")
        return found
    path = environ.get("PATH", "")
    for program in _on_path("bazel", path):
        # Bazelisk reads .bazelversion itself; asking it for a version would make it download.
        if is_bazelisk(program) or reported_major(program, workspace) == wanted:
            return program
    return next(iter(_on_path("bazelisk", path)), None)


def _on_path(name: str, path: str) -> list[str]:
    found = [Path(folder) / name for folder in path.split(os.pathsep) if folder]
    return [str(file) for file in found if os.access(file, os.X_OK) and not is_wrapper(file)]


def is_wrapper(file: Path) -> bool:
    """Tell whether a file is the `bazel` that `tools/bazelw install` made."""
    try:
        with file.open("rb") as stream:
            return WRAPPER_MARK.encode() in stream.read(400)
    except OSError:
        return False


def is_bazelisk(program: str) -> bool:
    """Tell whether a program is Bazelisk, which is often linked to under the name `bazel`."""
    return Path(program).resolve().name.startswith("bazelisk")


def reported_major(program: str, workspace: Path) -> str | None:
    """Return the major version a Bazel reports, without starting its server."""
    try:
        done = subprocess.run(
            [program, "--version"],
            # A Bazelisk that was saved as `bazel` looks for .bazelversion around this folder.
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^bazel (\d+)\.", done.stdout, re.MULTILINE)
    return match.group(1) if match else None
