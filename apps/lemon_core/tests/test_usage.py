"""Usage arithmetic (specification lemon_core 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.usage import UsageTotals, context_tokens, normalize_usage


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"context_tokens": 9, "input": 1}, 9),
        ({"context_tokens": 0, "input": 1}, 0),
        ({"input": 5, "cache_read": 3, "cache_write": 2}, 10),
        ({"input": 5, "cache_read_tokens": 3, "cache_write_tokens": "2"}, 10),
        ({"input": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}, 10),
        ({"input_tokens": "5", "cached_input_tokens": 4}, 9),
        ({"prompt_tokens": 7, "cached_input_tokens": 4}, 7),
        ({"output": 3}, None),
        ({"input": True}, None),
        ({"input": None, "prompt_tokens": "7"}, 7),
    ],
)
def test_context_tokens_counts_the_window_once(
    usage: dict[str, object], tokens: int | None
) -> None:
    assert context_tokens(usage) == tokens


def test_usage_without_numbers_is_unknown_and_not_zero() -> None:
    assert normalize_usage(None) is None
    assert normalize_usage({}) is None
    assert normalize_usage({"note": "x", "input": "many", "output": float("nan")}) is None
    assert normalize_usage({"output": 0}) == UsageTotals(output=0)


@pytest.mark.parametrize(
    ("usage", "totals"),
    [
        (
            {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
            UsageTotals(input=7, output=2, total=9, context=7),
        ),
        (
            {"input": 5, "output": 2, "cache_read": 1, "cache_write": 0, "total_tokens": 8,
             "cost_usd": "0.25", "context_tokens": 4},
            UsageTotals(5, 2, 1, 0, 8, 4, 0.25),
        ),
        (
            {"input_tokens": "5", "output_tokens": "2", "cached_input_tokens": 4, "total": 11},
            UsageTotals(input=5, output=2, cache_read=4, total=11, context=9),
        ),
    ],
)  # fmt: skip
def test_every_spelling_is_one_vocabulary(usage: dict[str, object], totals: UsageTotals) -> None:
    assert normalize_usage(usage) == totals


@given(
    st.dictionaries(
        st.sampled_from(["input", "output", "cache_read", "prompt_tokens", "cost_usd", "total"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none()),
    )
)
def test_nothing_that_is_reported_raises(usage: dict[str, object]) -> None:
    totals = normalize_usage(usage)
    assert totals is None or totals != UsageTotals()
