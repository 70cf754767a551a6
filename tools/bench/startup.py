"""`bazel run //tools/bench:startup`: how long the packaged `lemon` takes, beside Python itself.

The package is unpacked into an empty folder and called in an empty home with nothing but Python on
PATH, as on a machine where it was just installed. The commands take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from lemon_ai.testing import FakeChatServer, Turn
from lemon_core.testing import socket_dir
from tools.bench.processes import Ended, run_to_end
from tools.bench.stats import percentile
from tools.bench.table import Aim, Row, at_most, machine_facts, show

PACKAGES: Final = Path("tools/release")
BUILT: Final = Path("tools/release/lemon")
ANSWER: Final = Turn(text="Hello.")


@dataclass(frozen=True, slots=True)
class Command:
    """What is called, and how long it may take."""

    name: str
    words: tuple[str, ...]
    aim: Aim | None = None


def commands(python: Path, lemon: Path, built: Path) -> tuple[Command, ...]:
    """In the order in which they take turns; the last one asks the scripted model."""
    return (
        Command("python3 -c pass", (str(python), "-c", "pass")),
        Command("python3 -I -S -c pass", (str(python), "-I", "-S", "-c", "pass")),
        Command("lemon --version", (str(lemon), "--version"), at_most(80)),
        Command("lemon --help", (str(lemon), "--help"), at_most(80)),
        Command("lemon run --help", (str(lemon), "run", "--help"), at_most(300)),
        Command("lemon config --help", (str(lemon), "config", "--help"), at_most(300)),
        Command("lemon stop, with nothing running", (str(lemon), "stop")),
        Command("lemon --version, as Bazel builds it", (str(built), "--version")),
        Command('lemon run "Say hello."', (str(lemon), "run", "Say hello.")),
    )


async def measure(runs: int, archive: Path, built: Path) -> Mapping[Command, list[Ended]]:
    """What each command took, once per turn; the first turn fills the caches and is left out."""
    found: dict[Command, list[Ended]] = {}
    with socket_dir() as root:
        python = root / "bin" / "python3"
        await anyio.to_thread.run_sync(_prepare, root, python, archive)
        async with FakeChatServer(default=ANSWER) as model:
            environ = {
                "HOME": str(root / "home"),
                "PATH": str(root / "bin"),
                "OPENAI_API_KEY": "bench",
                "OPENAI_BASE_URL": model.base_url,
                **{name: text for name, text in os.environ.items() if name.startswith("RUNFILES")},
            }
            for turn in range(runs + 1):
                for command in commands(python, root / "package" / "bin" / "lemon", built):
                    ended = await run_to_end(
                        command.words, environ=environ, cwd=root / "home", scratch=root
                    )
                    if turn:
                        found.setdefault(command, []).append(ended)
    return found


def _prepare(root: Path, python: Path, archive: Path) -> None:
    for name in ("home", "bin", "package"):
        (root / name).mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    with tarfile.open(archive) as tar:
        tar.extractall(root / "package", filter="data")


def rows(found: Mapping[Command, Sequence[Ended]]) -> list[Row]:
    """The middle of each, in milliseconds."""
    return [
        Row(command.name, percentile([one.wall_s for one in ended], 50) * 1000, "ms", command.aim)
        for command, ended in found.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="startup", description="How long lemon takes to start.")
    parser.add_argument("--runs", type=int, default=20, help="of each command")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    (archive,) = PACKAGES.glob("lemon-*.tar.gz")
    found = anyio.run(measure, max(1, arguments.runs), archive.absolute(), BUILT.absolute())
    print(show(rows(found), machine_facts(began), as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
