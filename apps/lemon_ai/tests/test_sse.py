"""The server-sent-events decoder."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_ai import sse
from lemon_ai.sse import LineTooLong, SSEDecoder, SSEEvent

NEWLINES = ("\n", "\r\n", "\r")


def decode(pieces: list[bytes]) -> list[SSEEvent]:
    decoder = SSEDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [*events, *decoder.finish()]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


text_lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
events = st.lists(
    st.tuples(st.lists(text_lines, min_size=1, max_size=3), st.sampled_from(["", "ping", "über"])),
    max_size=5,
)


@given(events, st.sampled_from(NEWLINES), st.lists(st.integers(0, 10_000), max_size=30), st.data())
def test_every_event_is_read_however_the_bytes_are_cut(
    source: list[tuple[list[str], str]], newline: str, cuts: list[int], data: st.DataObject
) -> None:
    """Specification lemon_ai 5: LF, CRLF and CR, multi-line data, comments, any split."""
    lines: list[str] = []
    for data_lines, name in source:
        if data.draw(st.booleans()):
            lines.append(": a comment")
        if name:
            lines.append(f"event: {name}")
        lines += [f"data: {line}" for line in data_lines]
        lines.append("")
    raw = "".join(line + newline for line in lines).encode()
    expected = [SSEEvent("\n".join(d).encode(), name) for d, name in source]
    assert decode(cut(raw, cuts)) == expected


@pytest.mark.parametrize("newline", NEWLINES)
def test_a_cut_at_every_byte_gives_the_same_events(newline: str) -> None:
    raw = f"data: 日本{newline}data: 🍋{newline}{newline}: x{newline}data: y{newline}{newline}"
    data = raw.encode()
    expected = [SSEEvent("日本\n🍋".encode()), SSEEvent(b"y")]
    for position in range(len(data) + 1):
        assert decode([data[:position], data[position:]]) == expected
    assert decode([data[i : i + 1] for i in range(len(data))]) == expected


def test_an_event_without_its_final_blank_line_is_read_at_the_end() -> None:
    assert decode([b"data: one\n\ndata: [DONE]"]) == [SSEEvent(b"one"), SSEEvent(b"[DONE]")]


def test_a_unicode_line_separator_is_data() -> None:
    line = "data: a\u2028b\n\n".encode()
    assert decode([line]) == [SSEEvent("a\u2028b".encode())]


def test_byte_order_mark_missing_space_and_unknown_fields() -> None:
    raw = b"\xef\xbb\xbfdata:one\nid: 7\nretry: 5\nunknown\n\ndata\n\n"
    assert decode([raw]) == [SSEEvent(b"one"), SSEEvent(b"")]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 10)
    decoder = SSEDecoder()
    decoder.feed(b"data: 1234")
    with pytest.raises(LineTooLong):
        decoder.feed(b"5")
