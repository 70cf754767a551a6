"""Keys and values as bytes (specification lemon_core 8.1)."""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lemon_core.store import Codec, StoreCorrupt, UnsupportedValue
from lemon_core.store.codec import decode_key, encode_key

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters())
    | st.binary()
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=2))))
)
TEXTS = st.text(st.characters(), max_size=5) | st.sampled_from(["__tuple__", "__map__", "__int__"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=12,
)
PARTS = st.text() | st.integers(-(2**63), 2**63 - 1)
KEYS = PARTS | st.lists(PARTS, min_size=1, max_size=4).map(tuple)


class Old(BaseModel):
    """A model that a later version no longer registers."""

    n: int


def same(left: object, right: object) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return left == right


@pytest.mark.behaviour("lemon_core.22")
@given(VALUES)
def test_every_value_round_trips(value: object) -> None:
    codec = Codec()
    assert same(codec.decode(codec.encode(value)), value)


@given(KEYS, KEYS)
def test_every_key_round_trips_and_distinct_keys_have_distinct_bytes(
    one: str | int | tuple[str | int, ...], other: str | int | tuple[str | int, ...]
) -> None:
    assert decode_key(encode_key(one)) == one
    assert (encode_key(one) == encode_key(other)) == (one == other)


def test_equal_maps_have_equal_bytes() -> None:
    codec = Codec()
    assert codec.encode({"a": 1, "b": (2,)}) == codec.encode({"b": (2,), "a": 1})


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, {1: 2}, {1, 2}, object(), Old(n=1), [object()]], ids=repr
)
def test_what_would_not_come_back_equal_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedValue):
        Codec().encode(value)


def test_a_bottomless_value_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(UnsupportedValue):
        Codec().encode(value)


@pytest.mark.parametrize("key", [True, 1.5, None, (), ("a", None), ("a", ("b",)), b"x"], ids=repr)
def test_other_keys_are_refused(key: object) -> None:
    with pytest.raises(UnsupportedValue):
        encode_key(key)  # type: ignore[arg-type]  # wrong on purpose


def test_an_unknown_model_reads_as_a_map_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    writer = Codec()
    writer.register(Old, name="lemon.old", version=2)
    data = writer.encode({"old": Old(n=1)})
    with caplog.at_level(logging.WARNING, logger="lemon"):
        assert Codec().decode(data) == {"old": {"n": 1}}
    assert [record.message for record in caplog.records] == ["store.unknown_model"]
    assert writer.decode(data) == {"old": Old(n=1)}


def test_two_models_cannot_share_a_name() -> None:
    codec = Codec()
    codec.register(Old)
    codec.register(Old)

    class Other(BaseModel):
        pass

    with pytest.raises(ValueError, match="Old"):
        codec.register(Other, name="Old")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04pickle",
        b"{",
        b'{"__bytes__": "*"}',
        b'{"__tuple__": 1}',
        b'{"__model__": [1]}',
    ],
    ids=repr,
)
def test_damaged_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        Codec().decode(data)


def test_a_stored_model_that_no_longer_fits_is_corrupt() -> None:
    codec = Codec()
    codec.register(Old)
    with pytest.raises(StoreCorrupt):
        codec.decode(b'{"__model__": ["Old", 1, {"n": "many"}]}')


def test_a_datetime_keeps_its_offset() -> None:
    codec = Codec()
    value = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(minutes=345)))
    back = codec.decode(codec.encode(value))
    assert isinstance(back, datetime)
    assert back.utcoffset() == timedelta(minutes=345)
