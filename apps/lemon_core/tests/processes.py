"""Python subprocesses of tests: started with this process's import path, killed by force."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def python(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A running Python that executes `script`; killed and waited for when the block ends."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args], stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=5)


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints; empty when it ended instead."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
