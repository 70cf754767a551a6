"""Versions of releases (specification lemon_core 15)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.calver import CalVer

SUFFIXES = st.from_regex(r"([0-9a-z]{1,3}([.-][0-9a-z]{1,3}){0,2})?", fullmatch=True)
VERSIONS = st.builds(
    CalVer, st.integers(1000, 9999), st.integers(1, 12), st.integers(0, 10**9 - 1), SUFFIXES
)


def test_the_order_is_that_of_the_calendar_and_a_suffix_comes_before() -> None:
    texts = [
        "2025.12.9",
        "2026.01.0",
        "2026.02.0-1",
        "2026.02.0-nightly.9",
        "2026.02.0-nightly.10",
        "2026.02.0-rc",
        "2026.02.0-rc.1",
        "2026.02.0",
        "2026.02.1-rc",
        "2026.02.9",
        "2026.02.10",
    ]
    versions = [CalVer.parse(text) for text in texts]
    assert all(one < two for one, two in pairwise(versions))
    assert [str(version) for version in versions] == texts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026.1.0",
        "2026.13.0",
        "2026.00.0",
        "26.01.0",
        "2026.01",
        "2026.01.01",
        "2026.01.0-",
        "2026.01.0-a..b",
        "2026.01.0+x",
        "v2026.01.0",
        " 2026.01.0",
        "2026.01.0\n",
        "2026.01.0/..",
        "٢٠٢٦.01.0",
        "2026.01.0-a/b",
    ],
)
def test_other_text_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        CalVer.parse(text)


@given(VERSIONS, VERSIONS)
def test_every_version_reads_back_and_any_two_compare(one: CalVer, two: CalVer) -> None:
    assert CalVer.parse(str(one)) == one
    assert (one < two) + (two < one) + (one._order() == two._order()) == 1
