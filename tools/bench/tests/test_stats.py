"""The arithmetic of the benchmarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.stats import Load, Spread, Timing, growth_per, middle_share, percentile


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (20, 1.0), (21, 2.0), (50, 3.0), (99, 5.0), (100, 5.0)]
)
def test_a_percentile_is_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile([3.0, 1.0, 5.0, 2.0, 4.0], percent) == value


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 100))
def test_a_percentile_is_a_measured_value_that_grows_with_the_percent(
    values: list[float], percent: float
) -> None:
    assert percentile(values, percent) in values
    assert min(values) <= percentile(values, percent) <= percentile(values, 100) == max(values)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        percentile([], 50)
    with pytest.raises(ValueError, match="from 0 to 100"):
        percentile([1.0], 101)


def test_a_load_in_milliseconds() -> None:
    timings = tuple(Timing(number / 2000, number / 1000) for number in range(1, 101))
    load = Load(8, timings, wall_s=0.5, cpu_s=0.2)
    assert (load.count, load.per_second, load.cpu_ms_per_run) == (100, 200.0, 2.0)
    assert load.total_ms == Spread(50.0, 99.0, 100)
    assert load.first_token_ms == Spread(25.0, 49.5, 100)


def test_growth_is_scaled_and_never_negative() -> None:
    assert growth_per(1_000, before=50.0, after=51.0, done=200) == 5.0
    assert growth_per(1_000, before=50.0, after=49.0, done=200) == 0.0
    with pytest.raises(ValueError, match="no runs"):
        growth_per(1_000, 1.0, 1.0, 0)


def test_a_share_is_of_what_was_measured_right_beside_it() -> None:
    """Not of the other's middle: a machine that slows down slows both."""
    assert middle_share([1, 2, 30], [2, 4, 40]) == 0.5
