"""A new user's machine, as an installation finds it: an empty home and few programs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from lemon_core.testing import socket_dir

INSTALLER = Path(__file__).parents[1] / "install.sh"
# Generous: it only ends what hangs.
LIMIT_S = 90.0
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
# What install.sh needs, and what a POSIX system has anyway.
_PROGRAMS = (
    *("sh", "tar", "gzip", "cat", "chmod", "cp", "env", "grep", "kill", "ln", "mkdir"),
    *("mktemp", "mv", "rm", "sleep", "uname"),
)


_CURL = """\
#!{python}
import sys, urllib.request
_, *options, url = [word for word in sys.argv if word not in ("--retry", "0", "2")]
try:
    with urllib.request.urlopen(url) as answer:
        body = answer.read()
except OSError:
    sys.exit(22)
if answer.length:
    sys.exit(18)
with open(options[options.index("-o") + 1], "wb") as file:
    file.write(body)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A home, and the only programs that are on PATH."""

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.root / "h"

    @property
    def programs(self) -> Path:
        """The only folder on PATH."""
        return self.root / "bin"

    @property
    def lemon(self) -> Path:
        """`~/.lemon`."""
        return self.home / ".lemon"

    def with_environ(self, **environ: str) -> Machine:
        """The same machine with more variables."""
        return Machine(self.root, {**self.environ, **environ})

    async def run(self, *command: str | Path, stdin: bytes = b"") -> Ended:
        """A command to its end, with nothing else in its environment, and no terminal."""
        environ = {"HOME": str(self.home), "PATH": str(self.programs), **self.environ}
        with anyio.fail_after(LIMIT_S):
            done = await anyio.run_process(
                [str(part) for part in command],
                env=environ,
                cwd=self.home,
                input=stdin,
                check=False,
                start_new_session=True,
            )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def install(self, *options: str) -> Ended:
        """`install.sh` with these options."""
        return await self.run("sh", INSTALLER, *options)

    def seen(self) -> dict[str, object]:
        """What an installation may change, in one value to compare."""
        versions = self.lemon / "versions"
        if not versions.is_dir():
            return {}
        current = versions / "current"
        return {
            "current": os.readlink(current) if current.is_symlink() else None,
            "versions": sorted(path.name for path in versions.iterdir() if path.name != ".lock"),
            "tmp": sorted(path.name for path in (self.lemon / "tmp").iterdir()),
        }


@contextmanager
def new_machine(*, programs: Sequence[str] = _PROGRAMS) -> Iterator[Machine]:
    """A machine for the block; Python is there as `python3`."""
    with socket_dir() as root:
        machine = Machine(root)
        for folder in (machine.home, machine.programs):
            folder.mkdir()
        os.symlink(os.path.realpath(sys.executable), machine.programs / "python3")
        for name in programs:
            found = shutil.which(name)
            assert found is not None, f"{name} is needed for this test"
            os.symlink(found, machine.programs / name)
        if "sh" in programs:
            _put_curl(machine)
        yield machine


def _put_curl(machine: Machine) -> None:
    """curl is the one program that not every machine has; else one of ours does its part."""
    if (found := shutil.which("curl")) is not None:
        os.symlink(found, machine.programs / "curl")
    else:
        script_of(machine, "curl", _CURL.format(python=os.path.realpath(sys.executable)))


def release_json(version: str, **changes: object) -> dict[str, object]:
    """Fields of a manifest for this machine's Python."""
    return {"python": PYTHON, "version": version, **changes}


def script_of(machine: Machine, name: str, text: str) -> None:
    """Put a program of our own on PATH."""
    path = machine.programs / name
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
