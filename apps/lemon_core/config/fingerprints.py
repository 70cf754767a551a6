"""Whether a file is another one than before: cheaply by its status, surely by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the file system says of a file; None stands for one that is not there."""

    mtime_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class Digest:
    """A fingerprint together with the SHA-256 of the content."""

    fingerprint: Fingerprint
    sha256: str


def fingerprint(path: Path) -> Fingerprint | None:
    """The fingerprint of the file at `path`, links followed; None without one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Fingerprint(status.st_mtime_ns, status.st_size)


def digests(paths: Iterable[Path]) -> dict[Path, Digest | None]:
    """The digest of each file; None for one that is not there or cannot be read."""
    found: dict[Path, Digest | None] = {}
    for path in paths:
        status = fingerprint(path)
        # What is no regular file is the load's to report, and reading it could block.
        try:
            raw = path.read_bytes() if path.is_file() else b""
        except OSError:
            status = None
        found[path] = None if status is None else Digest(status, hashlib.sha256(raw).hexdigest())
    return found
