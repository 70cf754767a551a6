"""Kernels and scripts for tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coding_agent.kernel import Cell, KernelLaunch, kernel_argv
from lemon_core.testing import scrubbed_environ


class NoCalls:
    """Whoever answers a script without helpers."""

    token = "token"
    has_foreign = False

    async def answer(self, frame: Mapping[str, Any]) -> Mapping[str, object]:
        raise AssertionError(frame)


class Printed:
    """What a script has printed."""

    def __init__(self) -> None:
        self.data = b""

    async def take(self, chunk: bytes) -> None:
        self.data += chunk


def launch_in(folder: Path, python: str = sys.executable) -> KernelLaunch:
    return KernelLaunch(kernel_argv(python), folder, (), scrubbed_environ(folder))


def cell(script: str, printed: Printed | None = None) -> Cell:
    return Cell(script, (printed or Printed()).take, NoCalls())
