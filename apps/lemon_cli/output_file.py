"""What a background server prints, in a file that does not grow for ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lemon_core.clock import Clock

MAX_BYTES: Final = 10 * 1024 * 1024
MAX_FILES: Final = 3
LOOK_MS: Final = 30_000


class OutputFile:
    """Takes stdout and stderr of this process; `max_files` old ones stay beside it."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        self.path, self._max_bytes, self._max_files = path, max_bytes, max_files

    def take(self) -> None:
        """From now on everything goes to the end of the file."""
        self.rotate()
        fd = open_output(self.path)
        for stream in (1, 2):
            os.dup2(fd, stream)
        os.close(fd)

    def rotate(self) -> bool:
        """Begin a new file when this one is full; False when it is not."""
        try:
            if self.path.stat().st_size < self._max_bytes:
                return False
        except FileNotFoundError:
            return False
        for number in range(self._max_files, 0, -1):
            older = self._numbered(number - 1) if number > 1 else self.path
            if older.exists():
                older.replace(self._numbered(number))
        return True

    async def serve(self, clock: Clock) -> None:
        """Look at the file's size now and then; logs have no event for it."""
        while True:
            await clock.sleep(LOOK_MS)
            if self.path.exists() and self.path.stat().st_size >= self._max_bytes:
                self.take()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def open_output(path: Path) -> int:
    """The file open for appending, its owner's alone."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def last_lines(path: Path, count: int, *, start: int = 0) -> list[str]:
    """The last lines of the file, of those after `start` bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - 256 * 1024))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-count:]
