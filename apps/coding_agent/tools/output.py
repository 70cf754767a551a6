"""What is kept of a program's output: its head, its tail, or all of it in a private file.

Memory stays bounded whatever a program prints. Files are the session's own, never in the system's
temporary folder.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.workspace import make_private_folder
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_SPILL_BYTES: Final = 64 * 1_024 * 1_024
SPILL_BUFFER_BYTES: Final = 512 * 1_024


class Head:
    """Keeps the first `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()

    async def take(self, chunk: bytes) -> None:
        """Add output."""
        self.data += chunk[: max(0, self._limit - len(self.data))]


class Tail:
    """Keeps the last `limit` bytes, and counts all of them and their line feeds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.total_bytes = 0
        self.line_feeds = 0

    def take(self, chunk: bytes) -> None:
        """Add output."""
        self.total_bytes += len(chunk)
        self.line_feeds += chunk.count(b"\n")
        self._data += chunk
        # Trimmed at twice the size, so that the cost per byte stays constant.
        if len(self._data) > 2 * self._limit:
            del self._data[: -self._limit]

    def last(self, size: int | None = None) -> bytes:
        """The last bytes, at most `size`; it does not begin inside a UTF-8 character."""
        size = min(size or self._limit, self._limit)
        data = bytes(self._data[-size:])
        if self.total_bytes > len(data):
            start = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            return data[start:]
        return data


class Excerpt:
    """Head and tail of output that is too long to show, and how much there was.

    Up to `limit` bytes and `LINES` lines are shown whole, else `head` bytes and the end.
    """

    BYTES: Final = 50_000
    HEAD_BYTES: Final = 10_000
    LINES: Final = 2_000
    HEAD_LINES: Final = 200

    def __init__(self, limit: int = BYTES, head: int = HEAD_BYTES) -> None:
        self._limit, self._head_limit = limit, head
        self._head = bytearray()
        self.tail = Tail(limit)

    def take(self, chunk: bytes) -> None:
        """Add output."""
        self._head += chunk[: self._head_limit - len(self._head)]
        self.tail.take(chunk)

    @property
    def size(self) -> int:
        """How many bytes there were."""
        return self.tail.total_bytes

    @property
    def is_cut(self) -> bool:
        """Whether not everything is shown."""
        return self.size > self._limit or self.tail.line_feeds > self.LINES

    def parts(self) -> tuple[bytes, bytes]:
        """What is shown: everything and nothing, or a head and a tail that do not overlap."""
        if not self.is_cut:
            return self.tail.last(), b""
        lines = bytes(self._head).split(b"\n")
        head = b"\n".join(lines[: self.HEAD_LINES])
        tail = self.tail.last(min(self._limit - self._head_limit, self.size - len(head)))
        return head, b"\n".join(tail.rstrip(b"\n").split(b"\n")[self.HEAD_LINES - self.LINES :])


class SpillFile:
    """Takes whole output, at most 64 MiB; a file is made when memory should hold no more of it.

    A disk that takes nothing costs the file and not the run: it is logged once.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        self._path = folder / f"{secrets.token_hex(8)}.{suffix}"
        self._buffer = bytearray()
        self._room = MAX_SPILL_BYTES
        self._failed = False

    async def write(self, chunk: bytes) -> None:
        """Add output; what comes after 64 MiB is dropped."""
        self._buffer += chunk[: self._room]
        self._room -= min(len(chunk), self._room)
        if len(self._buffer) >= SPILL_BUFFER_BYTES:
            await self._flush()

    async def save(self) -> Path | None:
        """The file with everything; None when it could not be written."""
        await self._flush()
        return None if self._failed else self._path

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        if not self._failed:
            await anyio.to_thread.run_sync(self._append, bytes(data))

    def _append(self, data: bytes) -> None:
        try:
            make_private_folder(self._path.parent)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(fd, "ab") as file:
                file.write(data)
        except OSError as exc:
            self._failed = True
            log.warning("spill.write_failed", path=str(self._path), reason=exc.strerror)
