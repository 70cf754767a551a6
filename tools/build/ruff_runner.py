"""`ruff_runner.py FILE…`: lint and format check in a test; prints what to run to repair it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ruff import find_ruff_bin

_CHECKS = (("check",), ("format", "--check", "--diff"))


def main(arguments: Sequence[str]) -> int:
    """0 when every Python file among the arguments is clean."""
    files = sorted({name for name in arguments if name.endswith((".py", ".pyi"))})
    if not files:
        return 0
    ruff = os.fspath(find_ruff_bin())
    options = ["--no-cache", "--quiet", "--config=pyproject.toml"]
    codes = [subprocess.run([ruff, *check, *options, *files]).returncode for check in _CHECKS]
    if any(codes):
        print("repair with: ruff check --fix . && ruff format .")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
