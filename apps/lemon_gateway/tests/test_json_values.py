"""What travels as JSON, and how the rest becomes it."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_gateway.json_values import clean, is_json, plain

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    max_leaves=10,
)
ODD = st.recursive(
    JSON | st.floats() | st.binary() | st.text() | st.just(object),
    lambda inner: st.lists(inner) | st.sets(st.integers()) | st.dictionaries(st.integers(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc"), JSON))
@settings(max_examples=50)
def test_json_maps_stay_the_same_object(value: dict[str, object]) -> None:
    """Specification lemon_gateway 5.1: integers and key order survive."""
    assert is_json(value)
    assert plain(value) is value


@given(st.dictionaries(st.text() | st.integers(), ODD))
@settings(max_examples=50)
def test_anything_becomes_json(value: dict[str, object]) -> None:
    """Specification lemon_gateway 5.1: free-form maps are UTF-8 JSON."""
    made = plain(value)
    assert is_json(made)
    json.dumps(made, allow_nan=False, ensure_ascii=False).encode()


def test_nothing_stays_nothing() -> None:
    """Absent and empty are different things."""
    assert plain(None) is None
    assert plain({}) == {}


def test_lone_surrogates_are_replaced() -> None:
    """No wire form can carry them."""
    assert clean("a\ud800é") == "a?é"


def test_what_is_nested_too_deep_becomes_text() -> None:
    """The wire refuses nesting beyond 100."""
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(150):
        inner["x"] = {}
        inner = inner["x"]  # type: ignore[assignment]
    assert not is_json(deep)
    assert is_json(plain(deep))
