"""Durations, sizes and waiting times (specification lemon_core 2)."""

from __future__ import annotations

import pytest

from lemon_core.quantities import parse_bytes, parse_duration, parse_retry_after


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30_000),
        ("1.5 h", 5_400_000),
        ("2D", 172_800_000),
        (" 20 ms ", 20),
        ("3m", 180_000),
        ("250", 250),
        (250, 250),
        ("", None),
        ("s", None),
        ("1 week", None),
        ("-5s", None),
        ("1s 2s", None),
        (True, None),
        (float("nan"), None),
        (None, None),
    ],
)
def test_durations_are_milliseconds_and_bad_text_is_the_default(
    text: object, expected: int | None
) -> None:
    assert parse_duration(text, None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5 GB", 1_610_612_736),
        ("2kb", 2_048),
        ("1 TB", 1024**4),
        ("3 mb", 3 * 1024**2),
        ("7b", 7),
        ("7", 7),
        ("7 kib", -1),
        ([], -1),
    ],
)
def test_sizes_are_bytes_and_bad_text_is_the_default(text: object, expected: int) -> None:
    assert parse_bytes(text, -1) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"ok": false, "parameters": {"retry_after": 3}}', 3_000),
        ('{"parameters": {"retry_after": 0.25}}', 250),
        ("Too Many Requests: retry after 12", 12_000),
        ("Retry-After: 2.5", 2_500),
        ('{"parameters": {"retry_after": true}}', 0),
        ('{"parameters": {"retry_after": 1e999}}', 0),
        ('{"parameters": {"retry_after": -3}}', 0),
        ('{"parameters": []}', 0),
        ("[1]", 0),
        ("wait a moment", 0),
        ("", 0),
    ],
)
def test_a_refusal_says_how_long_to_wait(body: str, expected: int) -> None:
    assert parse_retry_after(body) == expected
