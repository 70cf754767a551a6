"""How the bytes of an answer travel: keep-alives, line ends, escapes, compression, cuts."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from lemon_ai.testing.script import Cut, Turn
from lemon_ai.testing.wires.base import Rendered, Wire

# After each of these one write ends.
_CUTS: Mapping[Cut, re.Pattern[bytes]] = {
    "character": re.compile(rb"[\xc2-\xf4](?=[\x80-\xbf])"),
    "line_end": re.compile(rb"\r(?=\n)"),
    "escape": re.compile(rb"\\(?=[\"\\/bfnrtu])|\\u[0-9a-f]{2}"),
}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def writes(turn: Turn, wire: Wire, rendered: Rendered) -> Iterator[tuple[int, list[bytes]]]:
    """For each delta its number and the writes it makes; what closes the answer comes last."""
    zipped = zlib.compressobj(wbits=31) if turn.gzip else None
    for index, data in enumerate(_dressed(turn, wire, rendered)):
        if zipped is not None:
            data = zipped.compress(data) + zipped.flush(zlib.Z_SYNC_FLUSH)
        if index == len(rendered.deltas) and zipped is not None:
            data += zipped.flush()
        yield index, list(cut(data, turn))


def _dressed(turn: Turn, wire: Wire, rendered: Rendered) -> Iterator[bytes]:
    opening = rendered.opening
    for data in (*rendered.deltas, rendered.closing):
        piece = opening + (wire.ping if turn.pings else b"") + data
        opening = b""
        yield _rewritten(piece, turn) if wire.is_sse else piece


def _rewritten(data: bytes, turn: Turn) -> bytes:
    if turn.raw is not None:
        return data
    if turn.ascii:
        # Outside of JSON strings an event stream of a model has only ASCII.
        data = _NOT_ASCII.sub(_escape, data.decode()).encode()
    return data.replace(b"\n", b"\r\n") if turn.crlf else data


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def cut(data: bytes, turn: Turn) -> Iterator[bytes]:
    """The bytes in the writes that the turn asks for."""
    if turn.cut is not None:
        start = 0
        for match in _CUTS[turn.cut].finditer(data):
            yield data[start : match.end()]
            start = match.end()
        data = data[start:]
    size = turn.chunk_bytes or len(data)
    for start in range(0, len(data), size or 1):
        yield data[start : start + size]
