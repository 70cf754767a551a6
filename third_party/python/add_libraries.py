"""Puts shared libraries that this machine lacks beside the extension modules that need them.

Runs inside the repository rule, after the split: `add_libraries.py SITES LIBRARIES PATCHELF`.
auditwheel does the same to most wheels before they are published; a few rely on the system.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def add(
    sites: Path, libraries: Path, needed_by: Callable[[Path], set[str]], use: Callable[[Path], None]
) -> list[Path]:
    """Copy from `libraries` what the `.so` files below `sites` need; return what was copied.

    `use` makes an extension module look into its own folder.
    """
    offered = {file.name for file in libraries.iterdir() if ".so" in file.name}
    added = []
    for module in sorted(sites.glob("*/site/**/*.so")):
        for library in sorted(needed_by(module) & offered):
            target = module.parent / library
            if not target.exists():
                shutil.copy(libraries / library, target)
                added.append(target)
            use(module)
    return added


def main(sites: Path, libraries: Path, patchelf: str) -> None:
    """Do it with patchelf."""

    def run(*arguments: str) -> str:
        return subprocess.run(
            [patchelf, *arguments], check=True, capture_output=True, text=True
        ).stdout

    def needed_by(module: Path) -> set[str]:
        return set(run("--print-needed", str(module)).split())

    def use(module: Path) -> None:
        run("--add-rpath", "$ORIGIN", str(module))

    add(sites, libraries, needed_by, use)


def _arguments(argv: Sequence[str]) -> tuple[Path, Path, str]:
    sites, libraries, patchelf = argv
    return Path(sites), Path(libraries), patchelf


if __name__ == "__main__":
    main(*_arguments(sys.argv[1:]))
