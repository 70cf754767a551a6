"""Server-sent events from bytes: pure, incremental, one pass.

Lines end with LF, CRLF or CR; chunks may be cut anywhere, also inside a UTF-8 character, because
nothing is decoded here: data stays bytes until a whole event is there.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
# A line longer than this is no event of a model: refuse it before it fills the memory.
MAX_LINE_BYTES = 32 * 1024 * 1024


class SSEEvent(NamedTuple):
    """One event; `name` is empty when the stream named none."""

    data: bytes
    name: str = ""


class BrokenFraming(ValueError):
    """The bytes of the answer are not in the wire's framing."""


class LineTooLong(BrokenFraming):
    """The stream sent a line without end."""

    def __init__(self) -> None:
        super().__init__(f"an event line is longer than {MAX_LINE_BYTES} bytes")


class SSEDecoder:
    """Feed chunks as they come; each call returns the events that became whole."""

    __slots__ = ("_after_cr", "_at_start", "_data", "_name", "_tail", "_tail_bytes")

    def __init__(self) -> None:
        self._tail: list[bytes] = []  # the unfinished line, in pieces
        self._tail_bytes = 0
        self._data: list[bytes] = []
        self._name = ""
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events completed by this chunk."""
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 0x0A:  # the second half of a CRLF
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        self._tail.append(chunk)
        lines = b"".join(self._tail).split(b"\n")
        self._tail.clear()
        self._tail_bytes = 0
        self._keep(lines.pop())
        return self._read(lines)

    def finish(self) -> list[SSEEvent]:
        """The event that the end of the stream left without its blank line, if any."""
        line = b"".join(self._tail)
        self._tail.clear()
        return self._read([line, b""])

    def _keep(self, piece: bytes) -> None:
        self._tail_bytes += len(piece)
        if self._tail_bytes > MAX_LINE_BYTES:
            raise LineTooLong
        self._tail.append(piece)

    def _read(self, lines: list[bytes]) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if not line:
                if self._data:
                    events.append(SSEEvent(b"\n".join(self._data), self._name))
                    self._data.clear()
                self._name = ""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip().decode("utf-8", "replace")
            elif line == b"data":
                self._data.append(b"")
            # Comments (a leading colon), `id`, `retry` and unknown fields say nothing to a model.
        return events
