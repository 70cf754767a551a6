"""What a folder of checkpoints holds, remembered from one change to the next.

A look costs one call of the system per file, which thousands of small checkpoints would add to
every edit. What was seen holds as long as nobody else has changed the folder: its modification time
tells of files that came or went, and a number in the lock file of what another process did within
the same tick of the file system's clock. Blocking, and only for the holder of the lock.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKPOINT_ID: Final = re.compile(r"chk_[0-9a-f]{16}")
_BLOCK: Final = 4_096
_MAX_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint's file; `order` is its modification time, `size` what it takes on the disk."""

    order: int
    name: str
    size: int


class Listing:
    """The files of a folder, the oldest first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._stored: deque[Stored] = deque()
        self.used_bytes = 0

    def look(self, lock_fd: int) -> bool:
        """Be up to date; True at the first look, and when somebody else has changed the folder."""
        if self._stamp is not None and self._stamp == self._now(lock_fd):
            return False
        self._stored = deque(scan(self._path))
        self.used_bytes = sum(stored.size for stored in self._stored)
        return True

    def keep(self, lock_fd: int) -> None:
        """Say that what is known now is what the folder holds, after a change of one's own."""
        changes = _number_in(lock_fd) + 1
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, str(changes).encode(), 0)
        self._stamp = self._now(lock_fd)

    def forget(self) -> None:
        """Look again next time."""
        self._stamp = None

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def newest(self) -> int:
        """The order of the last checkpoint; 0 without any."""
        return self._stored[-1].order if self._stored else 0

    def add(self, stored: Stored) -> None:
        """A checkpoint was written."""
        self._stored.append(stored)
        self.used_bytes += stored.size

    def pop_oldest(self) -> Stored | None:
        """The oldest, which is no longer counted; None without any."""
        if not self._stored:
            return None
        oldest = self._stored.popleft()
        self.used_bytes -= oldest.size
        return oldest

    def _now(self, lock_fd: int) -> tuple[int, int]:
        return os.stat(self._path).st_mtime_ns, _number_in(lock_fd)


def scan(path: Path) -> list[Stored]:
    """The checkpoints that are in the folder now, the oldest first."""
    found = []
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            name, _, ending = entry.name.partition(".")
            if ending == "json" and CHECKPOINT_ID.fullmatch(name):
                with suppress(FileNotFoundError):  # a reader holds no lock
                    info = entry.stat(follow_symlinks=False)
                    found.append(Stored(info.st_mtime_ns, entry.name, on_disk(info.st_size)))
    return sorted(found, key=lambda stored: (stored.order, stored.name))


def on_disk(size: int) -> int:
    """What a file of `size` bytes takes."""
    return -(-size // _BLOCK) * _BLOCK


def _number_in(lock_fd: int) -> int:
    """How many changes the lock file counts; what is no number counts as none."""
    text = os.pread(lock_fd, _MAX_DIGITS, 0)
    return int(text) if text.isdigit() else 0
