"""Exit codes, and the one error that carries one."""

from __future__ import annotations

from enum import IntEnum

from lemon_core.errors import LemonError


class ExitCode(IntEnum):
    """What the shell gets."""

    OK = 0
    FAILED = 1
    USAGE = 2
    TIMED_OUT = 124
    INTERRUPTED = 130


class CliError(LemonError):
    """Ends a command with one line on stderr and an exit code."""

    code = "cli_error"

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
