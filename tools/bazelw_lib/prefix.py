"""Turns Debian packages into a folder that runs where it lies, on this machine's older system.

Every file is written for the folder's final place, because programs name their dynamic loader by
absolute path; the folder itself is filled under another name and renamed when it is whole.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bazelw_lib import classpath
from tools.bazelw_lib.elf import ElfKind, elf_kind
from tools.bazelw_lib.report import REMEDY, BazelwError

# Where programs lie that this machine shall start. Not the library folder: libc.so.6 names a
# loader as well, and must stay as it is.
_PROGRAM_FOLDERS = ("usr/bin", "usr/libexec", "usr/lib/jvm")


@dataclass(frozen=True, slots=True)
class Prefix:
    """A tree of unpacked packages at `staged`, to be renamed to `final`."""

    staged: Path
    final: Path

    def unpack(self, packages: Iterable[Path]) -> None:
        """Unpack package files over each other, without running their scripts."""
        self.staged.mkdir(parents=True, exist_ok=True)
        for package in packages:
            _run(["dpkg", "-x", str(package), str(self.staged)])

    def relink(self) -> None:
        """Point absolute links into this tree where their target lies in it.

        The Java runtime's configuration is such links, and without it no server starts.
        """
        for link in [path for path in self.staged.rglob("*") if path.is_symlink()]:
            target = link.readlink()
            if not target.is_absolute():
                continue
            inside = self.staged / target.relative_to("/")
            if inside.exists() or inside.is_symlink():
                link.unlink()
                # Relative, so that it leads to the same file before and after the renaming.
                link.symlink_to(os.path.relpath(inside, link.parent))

    def patch_programs(self) -> None:
        """Let the programs use this tree's C library instead of the machine's."""
        libraries = self._library_folder()
        loader = self._loader(libraries)
        java = self._java_home()
        programs: list[Path] = []
        java_files: list[Path] = []
        for file in self._candidates():
            match elf_kind(file):
                case ElfKind.PROGRAM:
                    programs.append(file)
                case ElfKind.LIBRARY if not file.is_relative_to(java):
                    continue
                case ElfKind.NOT_ELF:
                    continue
            if file.is_relative_to(java):
                java_files.append(file)
        others = [file for file in programs if not file.is_relative_to(java)]
        final_libraries = str(self._at_final(libraries))
        final_java = self._at_final(java)
        java_path = f"{final_java}/lib:{final_java}/lib/server:{final_libraries}"
        with self._patchelf() as patchelf:
            patchelf(["--set-interpreter", str(self._at_final(loader))], programs)
            # The old-style rpath is forced because it also serves what dlopen loads later.
            patchelf(["--force-rpath", "--set-rpath", final_libraries], others)
            patchelf(["--force-rpath", "--set-rpath", java_path], java_files)

    def rewrite_class_path(self) -> None:
        """Let Bazel's server find its jars in this tree."""
        listed = self.staged / "usr/share/bazel/bazel_classpath_debian_depends.txt"
        if not listed.is_file():
            raise BazelwError(f"Debian's Bazel has no {listed.name} any more; {REMEDY}")
        classpath.rewrite(listed, self.staged, self.final)

    def java_home(self) -> Path:
        """Return the final place of the Java runtime."""
        return self._at_final(self._java_home())

    def module_overrides(self) -> list[str]:
        """Return `NAME=PATH` for the Bazel modules that Debian packages beside Bazel."""
        text = (self.staged / "etc/bazel/bazelrc").read_text(encoding="utf-8")
        overrides = []
        for line in text.splitlines():
            _, found, value = line.partition("--override_module=")
            name, _, path = value.strip().partition("=")
            if found and (self.staged / path.lstrip("/")).is_dir():
                overrides.append(f"{name}={self.final / path.lstrip('/')}")
        return overrides

    def _at_final(self, path: Path) -> Path:
        return self.final / path.relative_to(self.staged)

    def _library_folder(self) -> Path:
        return self._one("usr/lib/*-linux-gnu*/libc.so.6", "C library").parent

    def _loader(self, libraries: Path) -> Path:
        return self._one(f"{libraries.relative_to(self.staged)}/ld-linux*.so.*", "loader")

    def _java_home(self) -> Path:
        return self._one("usr/lib/jvm/*/bin/java", "Java runtime").parent.parent

    def _one(self, pattern: str, what: str) -> Path:
        found = sorted(path for path in self.staged.glob(pattern) if path.is_file())
        if not found:
            raise BazelwError(f"Debian's packages brought no {what}; {REMEDY}")
        # Debian numbers several Java runtimes upwards; the newest is the one Bazel is built for.
        return found[-1]

    def _candidates(self) -> list[Path]:
        return [
            path
            for folder in _PROGRAM_FOLDERS
            for path in sorted((self.staged / folder).rglob("*"))
            if path.is_file() and not path.is_symlink()
        ]

    @contextmanager
    def _patchelf(self) -> Iterator[Callable[[Sequence[str], Sequence[Path]], None]]:
        """Run patchelf before it is patched itself: a copy of it, through the tree's own loader."""
        libraries = self._library_folder()
        copy = self.staged / "patchelf"
        shutil.copy(self.staged / "usr/bin/patchelf", copy)
        loader = [str(self._loader(libraries)), "--library-path", str(libraries), str(copy)]

        def patchelf(arguments: Sequence[str], files: Sequence[Path]) -> None:
            _run([*loader, *arguments, *(str(file) for file in files)])

        yield patchelf
        copy.unlink()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BazelwError(f"{Path(command[0]).name} failed ({reason}); {REMEDY}")
