"""The programs as Bazel builds them: one start of Python, with nothing of its surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lemon_core.version import __version__

LEMON = Path("tools/release/lemon").absolute()


def run(program: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Ask a program for its version, in an environment with nothing but `environ`."""
    return subprocess.run(
        [program, "--version"],
        env={"HOME": "/nowhere", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_finds_its_files_from_anywhere(tmp_path: Path) -> None:
    link, second = tmp_path / "lemon", tmp_path / "second"
    link.symlink_to(LEMON)
    second.symlink_to("lemon")
    for program in (LEMON, link, second):
        done = run(program)
        assert (done.returncode, done.stdout) == (0, f"lemon {__version__}\n"), done


def test_no_module_of_the_user_takes_the_place_of_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "dataclasses.py").write_text("raise SystemExit('mine')")
    assert run(LEMON, PYTHONPATH=str(tmp_path)).returncode == 0


def test_a_copy_without_its_files_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "lemon"
    copy.write_bytes(LEMON.read_bytes())
    copy.chmod(0o755)
    done = run(copy)
    assert (done.returncode, done.stderr) == (
        1,
        f"{copy}: its files are not beside it: build it again\n",
    )


def test_one_start_of_python_does_all() -> None:
    first = LEMON.read_text().splitlines()[0]
    assert first == f"#!{os.path.realpath(sys.executable)} -IS"
