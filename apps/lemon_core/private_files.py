"""Opening new private files, and making a rename durable; blocking."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_new(path: Path) -> BinaryIO:
    """The new file `path`, for its owner alone (0600); raises `FileExistsError`, also for links."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return open(fd, "wb")


def sync_folder(path: Path) -> None:
    """Return when what was renamed, made or removed in the folder is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
