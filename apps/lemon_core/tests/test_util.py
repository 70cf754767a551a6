"""Small helpers (specification lemon_core 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.errors import is_context_overflow
from lemon_core.util import (
    canonical_json,
    capped_backoff,
    deep_merge,
    truncate_utf8,
)


def test_maps_merge_and_everything_else_is_replaced() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert deep_merge(base, {"a": {"y": [3]}, "b": {"z": 1}}) == {
        "a": {"x": 1, "y": [3]},
        "b": {"z": 1},
    }
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_backoff_doubles_up_to_its_cap() -> None:
    assert [capped_backoff(100, n, 2_000) for n in range(6)] == [100, 200, 400, 800, 1600, 2000]
    assert capped_backoff(100, 10_000, 2_000) == 2_000
    assert capped_backoff(100, 0, 2_000, jitter=0.5, uniform=lambda low, high: low) == 50


def test_canonical_json_is_sorted_compact_and_refuses_nan() -> None:
    assert canonical_json({"b": 1, "a": ["é"]}) == '{"a":["é"],"b":1}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@given(st.text(), st.integers(0, 40))
def test_truncation_keeps_whole_characters_and_names_what_it_dropped(text: str, limit: int) -> None:
    cut = truncate_utf8(text, limit)
    if len(text.encode()) <= limit:
        assert cut == text
    else:
        kept, _, rest = cut.rpartition("...[truncated ")
        assert len(kept.encode()) <= limit
        assert text.startswith(kept)
        assert len(text.encode()) - len(kept.encode()) == int(rest.removesuffix(" bytes]"))


@pytest.mark.parametrize(
    "error",
    [
        "HTTP 413",
        {"code": "x", "message": "Context window exceeded"},
        "输入过长",
        "string too long",
    ],
)
def test_overflow_is_recognised_in_every_form(error: object) -> None:
    assert is_context_overflow(error)


@pytest.mark.parametrize("error", [None, "", "lock_timeout", {"code": "rate_limited"}])
def test_other_errors_are_no_overflow(error: object) -> None:
    assert not is_context_overflow(error)
