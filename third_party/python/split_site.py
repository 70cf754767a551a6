"""Splits one folder that pip filled into one Bazel package per distribution.

Runs inside the repository rule, with the host's Python and nothing installed:
`split_site.py SITE TARGET`. The files of a distribution are those that its RECORD lists.
"""

import compileall
import csv
import importlib
import importlib.metadata
import py_compile
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

# The folder is one input, not its hundreds of files: runfiles hold one link per package, and
# the links of a few hundred tests do not fill gigabytes.
_BUILD = """\
load("@rules_python//python:defs.bzl", "py_library")

package(default_visibility = ["//visibility:public"])

exports_files(["site"])

py_library(
    name = "{name}",
    data = ["site"],
    imports = ["site"],
    deps = [{deps}],
)
"""

# For tools that need every package, such as the one that makes a virtual environment.
_ROOT_BUILD = """\
exports_files(["distributions.txt"])

filegroup(
    name = "sites",
    srcs = [{sites}],
    visibility = ["//visibility:public"],
)
"""


def bazel_name(distribution: str) -> str:
    """Return the name below `@pypi//`: lower case, words joined by `_`."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


def recorded_files(record: str) -> list[str]:
    """Return the paths in a RECORD.

    `Distribution.files` would do, but from Python 3.12 on it leaves out what pip moved elsewhere.
    """
    return [row[0] for row in csv.reader(record.splitlines()) if row]


def place_in_target(recorded: str) -> str | None:
    """Return where `pip install --target` put a recorded file, relative to the target.

    RECORD names scripts and data relative to a library folder two levels down (`../../bin/ruff`);
    pip moves what is above that folder into the target itself. None for a path leading elsewhere.
    """
    parts = [part for part in PurePosixPath(recorded).parts if part != ".."]
    path = PurePosixPath(*parts)
    return None if path.is_absolute() or not parts else str(path)


def required_names(requirements: Iterable[str]) -> set[str]:
    """Return the Bazel names of the requirements that hold here, without any extra."""
    # Markers need a real parser. pip was just used, so its own copy of `packaging` is there; here
    # and not at the top, because tests and mypy run without pip.
    packaging = importlib.import_module("pip._vendor.packaging.requirements")
    names = set()
    for text in requirements:
        requirement = packaging.Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names.add(bazel_name(requirement.name))
    return names


def split(
    site: Path,
    target: Path,
    names_of: Callable[[Iterable[str]], set[str]] = required_names,
) -> list[str]:
    """Move each distribution of `site` to `target/<name>/site` and write its BUILD file.

    Returns the names. `names_of` reads requirements; `site` is gone afterwards.
    """
    # All are listed before the first file moves: moving one would hide others.
    distributions = {
        bazel_name(found.metadata["Name"]): (
            recorded_files(found.read_text("RECORD") or ""),
            list(found.requires or []),
        )
        for found in importlib.metadata.distributions(path=[str(site)])
    }
    for name, (files, requires) in sorted(distributions.items()):
        package = target / name
        _move(site, files, package / "site")
        # A requirement that is not locked was left out on purpose (models.in).
        wanted = names_of(requires) & distributions.keys() - {name}
        deps = ", ".join(f'"//{dep}"' for dep in sorted(wanted))
        (package / "BUILD.bazel").write_text(_BUILD.format(name=name, deps=deps), encoding="utf-8")
        # The sandbox throws away what a test compiles, so without this each test compiles all it
        # imports. Unchecked: file times differ in every output base, and the files never change.
        compileall.compile_dir(
            package / "site",
            quiet=2,
            # A path of this machine in the bytecode would change its digest in every clone.
            stripdir=package / "site",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    shutil.rmtree(site)
    return sorted(distributions)


def _move(site: Path, recorded: Iterable[str], target: Path) -> None:
    target.mkdir(parents=True)
    for line in recorded:
        place = place_in_target(line)
        # RECORD may list bytecode that pip was told not to make.
        if place is not None and (site / place).is_file():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            (site / place).rename(target / place)


def main(site: Path, target: Path) -> None:
    """Split `site` and name all that came out of it in one more target."""
    names = split(site, target)
    (target / "distributions.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (target / "BUILD.bazel").write_text(
        _ROOT_BUILD.format(sites=", ".join(f'"//{name}:site"' for name in names)),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
