"""The program `bazel run //tools/dev:venv`: makes `.venv`, so that tools work without Bazel.

The environment gets copies of the very packages the build uses (no network, no pip) and a `.pth`
file that puts the workspace's own sources and the generated protos on the path. The protos are
those of the last build, so a changed contract is seen after the next `bazel build`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

# Lies in an environment made here; without it a `.venv` is somebody else's and stays.
_MARK = "made-by-lemon"


class VenvError(Exception):
    """The environment cannot be made; the message says why."""


def make(venv: Path, python: Path, sites: Iterable[Path], search_path: Iterable[Path]) -> None:
    """Make (again) an environment at `venv` for the interpreter `python`.

    `sites` are folders as `pip install --target` leaves them; `search_path` goes into the `.pth`.
    """
    if venv.exists() and not (venv / _MARK).exists():
        raise VenvError(f"{venv} was not made by this command; remove it first")
    # Without pip: a bare Debian has none to put there, and the lock says what is installed.
    command: list[str | Path] = [python, "-m", "venv", "--without-pip", "--clear", venv]
    subprocess.run(command, check=True)
    (venv / _MARK).touch()
    interpreter = venv / "bin" / "python3"
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = subprocess.run(
        [interpreter, "-c", question], check=True, capture_output=True, text=True
    )
    packages = Path(answer.stdout.strip())
    for site in sites:
        shutil.copytree(site, packages, dirs_exist_ok=True, ignore=_not_sources(site))
        if (site / "bin").is_dir():
            for script in sorted((site / "bin").iterdir()):
                copy_script(script, venv / "bin" / script.name, interpreter)
    lines = "".join(f"{folder}\n" for folder in search_path)
    (packages / "lemon.pth").write_text(lines, encoding="utf-8")


def _not_sources(site: Path) -> Callable[[str, list[str]], set[str]]:
    def ignored(folder: str, names: list[str]) -> set[str]:
        # The build's bytecode is never checked against its source, and here sources may be edited.
        return {name for name in names if name == "__pycache__"} | (
            {"bin"} & set(names) if Path(folder) == site else set()
        )

    return ignored


def copy_script(source: Path, target: Path, interpreter: Path) -> None:
    """Copy an executable; a Python script is made to run in the environment of `interpreter`."""
    content = source.read_bytes()
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        content = b"#!" + os.fsencode(interpreter) + newline + rest
    target.write_bytes(content)
    target.chmod(0o755)


def main(python_file: str, distributions_file: str) -> int:
    """Run below `bazel run`; the arguments are files in the runfiles."""
    workspace = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    python = Path(Path(python_file).read_text(encoding="utf-8").strip())
    names = Path(distributions_file).read_text(encoding="utf-8").split()
    sites = [Path(distributions_file).parent / name / "site" for name in names]
    search_path = [workspace / "apps", workspace, workspace / "bazel-bin" / "protos"]
    try:
        make(workspace / ".venv", python, sites, search_path)
    except (VenvError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"made {workspace / '.venv'} with {len(sites)} packages")
    print("activate it with: source .venv/bin/activate")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
