"""The main program of every pytest target: `pytest_runner.py TEST_FILE [pytest option…]`."""

import os
import sys
from pathlib import Path

import pytest_bazel


def main() -> None:
    """Run pytest with Bazel's conventions and the workspace's configuration, then exit."""
    # hypothesis reads it when imported: no deadline on a busy machine, the same examples each time;
    # pytest shows whole differences.
    os.environ.setdefault("CI", "true")
    scratch = os.environ.get("TEST_TMPDIR")
    if scratch is not None:
        # Bazel leaves HOME unset; Python would then find the user's real one.
        home = Path(scratch) / "home"
        home.mkdir(exist_ok=True)
        os.environ.setdefault("HOME", str(home))
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(scratch) / "hypothesis"))
    # Bazel starts a test in the runfiles' copy of the workspace root.
    pytest_bazel.main(["--rootdir=.", "--config-file=pyproject.toml", *sys.argv[1:]])


if __name__ == "__main__":
    main()
