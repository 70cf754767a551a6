"""Partial JSON, lone surrogates, shortening."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from lemon_ai.text import (
    TailInfo,
    dump_json,
    load_json,
    parse_arguments,
    parse_partial_object,
    replace_lone_surrogates,
    truncate_chars,
    truncate_middle_utf8,
    truncate_tail,
)
from lemon_ai.tokens import estimate_bytes, estimate_chars

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), values, max_size=4))
def test_partial_objects_only_ever_grow(source: dict[str, object]) -> None:
    raw = dump_json(source).decode()
    keys: set[str] = set()
    for end in range(len(raw) + 1):
        found = parse_partial_object(raw[:end])
        assert keys <= set(found)
        keys = set(found)
    assert parse_partial_object(raw) == source
    assert parse_arguments(raw) == (source, None)


@given(st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=3), st.data())
def test_a_cut_object_is_never_taken_for_a_whole_one(
    source: dict[str, object], data: st.DataObject
) -> None:
    raw = dump_json(source).decode()
    cut = raw[: data.draw(st.integers(1, len(raw) - 1))]
    arguments, problem = parse_arguments(cut)
    assert arguments == {}
    assert problem is not None


def test_what_is_no_object_is_empty() -> None:
    for raw in ("", "  ", "[1", "nonsense", '"text"', "{broken"):
        assert parse_partial_object(raw) == {}


@given(st.text(st.characters(), max_size=20))
def test_cleaned_text_is_always_encodable(text: str) -> None:
    cleaned = replace_lone_surrogates(text)
    cleaned.encode()
    assert len(cleaned) <= len(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in cleaned or len(cleaned) < len(text)
    else:
        assert cleaned == text


def test_json_with_lone_surrogates_is_written_and_read() -> None:
    assert orjson.loads(dump_json({"a\ud800": ["b\udc00", {"c": 1}]})) == {
        "a\ufffd": ["b\ufffd", {"c": 1}]
    }
    assert load_json(b'"\\ud83d"') == "\ud83d"


def test_characters_are_cut_with_an_ellipsis() -> None:
    assert truncate_chars("abc", 3) == "abc"
    assert truncate_chars("abcd", 3) == "ab…"
    assert (truncate_chars("abcd", 1), truncate_chars("abcd", 0)) == ("…", "")


@given(st.text(max_size=2_000), st.integers(0, 1_500))
def test_the_middle_is_left_out_within_the_limit(text: str, limit: int) -> None:
    short = truncate_middle_utf8(text, limit)
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        assert short == text
    else:
        assert len(short.encode()) <= limit


def test_most_of_the_room_is_for_the_beginning() -> None:
    short = truncate_middle_utf8("é" * 2_000, 1_256)
    head, note, tail = short.split("\n")
    assert (len(head.encode()), len(tail.encode())) == (700, 300)
    assert note == "[… 3000 of 4000 bytes left out …]"


def test_the_tail_is_whole_lines() -> None:
    text = "".join(f"line {n}\n" for n in range(10))
    assert truncate_tail(text) == (text, TailInfo(10, 70, 10, 70))
    short, info = truncate_tail(text, max_lines=2)
    assert (short, info) == ("line 8\nline 9\n", TailInfo(10, 70, 2, 14))
    assert truncate_tail(text, max_bytes=20) == ("line 8\nline 9\n", TailInfo(10, 70, 2, 14))
    assert info.is_truncated
    assert truncate_tail("") == ("", TailInfo(0, 0, 0, 0))


def test_of_a_last_line_that_is_too_long_the_end_stays() -> None:
    short, info = truncate_tail("a\n" + "é" * 100, max_bytes=5)
    assert (short, info) == ("éé", TailInfo(2, 202, 1, 4))


def test_tokens_are_estimated_as_a_quarter() -> None:
    assert (estimate_chars("x" * 9), estimate_bytes(b"x" * 8)) == (2, 2)
