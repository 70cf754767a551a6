"""Partial JSON and lone surrogates."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from lemon_ai.text import (
    dump_json,
    load_json,
    parse_arguments,
    parse_partial_object,
    replace_lone_surrogates,
)

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
    """FR-084."""
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
