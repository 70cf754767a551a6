"""Reading a repository tree: which files count, and which app and role a source has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

APPS = "apps"
BUILD_NAMES = ("BUILD.bazel", "BUILD")
PARTS = ("http", "rpc", "testing")

_IGNORED = frozenset({".git", "node_modules", ".venv", "tmp", "build", "__pycache__"})


def walk(root: Path, under: str = ".") -> Iterator[Path]:
    """Regular files below `root/under`, sorted, as paths relative to `root`.

    Symlinks and generated or foreign folders (`bazel-*`, `.venv`, `node_modules`, …) are left out:
    they would show a file twice or show files that are not ours.
    """
    start = root / under
    for folder, names, files in os.walk(start, followlinks=False):
        here = Path(folder)
        names[:] = sorted(name for name in names if not _skipped(here / name))
        for name in sorted(files):
            path = here / name
            if not path.is_symlink():
                yield path.relative_to(root)


def _skipped(folder: Path) -> bool:
    if folder.is_symlink() or folder.name.startswith("bazel-"):
        return True
    # `tools/build` holds Starlark rules; only an output folder at the top is called `build`.
    if folder.name == "build":
        return not any((folder / name).is_file() for name in BUILD_NAMES)
    return folder.name in _IGNORED


def app_names(root: Path) -> list[str]:
    """The folders below `apps/` that hold a BUILD file, sorted."""
    apps = root / APPS
    if not apps.is_dir():
        return []
    return sorted(
        folder.name
        for folder in apps.iterdir()
        if folder.is_dir() and any((folder / name).is_file() for name in BUILD_NAMES)
    )


def app_files(root: Path, app: str, suffix: str) -> list[Path]:
    """Files of one app with this suffix, relative to `root`."""
    return [path for path in walk(root, f"{APPS}/{app}") if path.name.endswith(suffix)]


def is_test_source(path: Path) -> bool:
    """Whether a file of an app may use `test_deps`: `tests/` and the part `testing`.

    `path` is relative to the repository root (`apps/<app>/…`).
    """
    return len(path.parts) > 3 and path.parts[2] in ("tests", "testing")
