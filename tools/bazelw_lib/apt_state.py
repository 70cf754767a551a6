"""A private apt: its own lists and an empty package status, the machine's own mirror and keys.

Nothing of the system's apt changes and no root is needed. The status file is empty, so that apt
names the whole closure of a package instead of what this machine happens to lack.
"""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bazelw_lib.report import REMEDY, BazelwError

_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AptState:
    """apt with its state below `home`."""

    home: Path

    def prepare(self, source: str) -> None:
        """Create the state for one deb822 source."""
        for folder in ("lists/partial", "cache/archives/partial", "debs"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        (self.home / "status").touch()
        (self.home / "debian.sources").write_text(source, encoding="utf-8")
        (self.home / "apt.conf").write_text(self._configuration(), encoding="utf-8")

    def _configuration(self) -> str:
        settings = {
            "Dir::Etc::SourceList": self.home / "debian.sources",
            "Dir::Etc::SourceParts": "/dev/null",
            # Pins of the machine would hide a suite that the machine does not use.
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State": self.home,
            "Dir::State::Lists": self.home / "lists",
            "Dir::State::status": self.home / "status",
            "Dir::Cache": self.home / "cache",
            # Container images switch these off to save space; here each apt call would pay for it.
            "Dir::Cache::pkgcache": "pkgcache.bin",
            "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
            "Acquire::GzipIndexes": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            # By default an update that fetched nothing counts as done.
            "APT::Update::Error-Mode": "any",
            # The `_apt` user cannot enter a home folder; only root ever switches to it.
            "APT::Sandbox::User": "root",
        }
        # A machine's hooks (cleaning, desktop catalogues) are about the system's apt, and may
        # need root.
        hooks = ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
        lines = [f"#clear APT::Update::{hook};" for hook in hooks]
        lines += [f'{name} "{value}";' for name, value in settings.items()]
        return "\n".join(lines) + "\n"

    def update(self) -> None:
        """Fetch the package lists; raises `BazelwError` when the mirror does not have them."""
        self._run("apt-get", "-qq", "update")

    def dependencies(self, packages: Sequence[str], *, recurse: bool = True) -> list[str]:
        """Return the names of all that the packages depend on, themselves included.

        Names alone, alternatives too: whether everything fits together is not asked, because in a
        development suite some compiler of the closure, never needed here, may not fit for a day.
        """
        flags = [
            f"--no-{kind}"
            for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        ]
        if recurse:
            flags.append("--recurse")
        return parse_dependencies(self._run("apt-cache", "depends", *flags, *packages))

    def known(self, prefix: str) -> list[str]:
        """Return the package names of the suite that begin with `prefix`."""
        return self._run("apt-cache", "pkgnames", prefix).split()

    def version(self, package: str) -> str | None:
        """Return the version that would be installed, or None."""
        for line in self._run("apt-cache", "policy", package).splitlines():
            name, _, value = line.strip().partition(": ")
            if name == "Candidate" and value != "(none)":
                return value
        return None

    def planned(self, packages: Sequence[str]) -> dict[str, int]:
        """Return file name and size in bytes of what `download` will fetch."""
        return parse_uris(self._run("apt-get", "--print-uris", "download", *packages))

    def download(self, packages: Sequence[str], on_bytes: Callable[[int], None]) -> Path:
        """Fetch the packages and return their folder, where files of an earlier try may lie too.

        `on_bytes` hears every few seconds how much is there. apt checks every file against the
        signed lists, also those that were there before.
        """
        folder = self.home / "debs"
        log = self.home / "download.log"
        command = self._command("apt-get", "-q", "download", *packages)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                while True:
                    try:
                        code = process.wait(timeout=_PROGRESS_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        on_bytes(sum(file.stat().st_size for file in _settled(folder)))
            finally:
                # Ctrl-C reaches apt too, another signal may not: leave no download behind.
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if code != 0:
            raise _failed(command, log.read_text(encoding="utf-8", errors="replace"))
        return folder

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [program, "-c", str(self.home / "apt.conf"), *arguments]

    def _run(self, program: str, *arguments: str) -> str:
        command = self._command(program, *arguments)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # apt's answers are parsed, so they must not be translated.
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
        if done.returncode != 0:
            raise _failed(command, done.stderr)
        return done.stdout


def parse_dependencies(text: str) -> list[str]:
    """Return the package names in the output of `apt-cache depends`, in order, once each.

    Virtual packages stand in `<>` and are left out; what provides them is listed too.
    """
    found = re.findall(r"^(?:\s*\|?\w+: )?\s*([a-z0-9][^\s:]*)(?::\w+)?$", text, re.MULTILINE)
    return list(dict.fromkeys(found))


def parse_uris(text: str) -> dict[str, int]:
    """Return file name and size of each line `'URI' NAME SIZE HASH` of `apt-get --print-uris`."""
    found = re.findall(r"^'[^']*' (\S+) (\d+)(?: |$)", text, re.MULTILINE)
    return {name: int(size) for name, size in found}


def _settled(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_file()]


def _failed(command: Sequence[str], output: str) -> BazelwError:
    errors = [line for line in output.splitlines() if line.startswith(("E:", "Err:"))]
    reason = errors[0] if errors else (output.strip().splitlines() or ["no message"])[-1]
    return BazelwError(f"{command[0]} failed ({reason}); {REMEDY}")
