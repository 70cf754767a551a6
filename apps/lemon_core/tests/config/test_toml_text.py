"""Values, keys and paths as TOML spells them (specification lemon_core 10.2)."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime, time

import pytest

from lemon_core.config.source import dotted
from lemon_core.config.toml_text import keys_text, line_end, literal_of, parse_path


def test_paths_are_read_as_they_are_written() -> None:
    assert parse_path("a.b-c[0].d") == ("a", "b-c", 0, "d")
    assert parse_path('a."x.y"') == ("a", "x.y")
    for text in ("", "a..b", "a b", "[0]x y", "a = 1 #", "a.b = 1\nc", "a."):
        with pytest.raises(ValueError, match="is no dotted path"):
            parse_path(text)


@pytest.mark.parametrize(
    "value",
    [
        True,
        -3,
        0.5,
        1e300,
        float("inf"),
        "",
        'quote " and \\ and \x7f and \n and ü',
        [1, ["a"]],
        {"a b": {"c": []}, "d": {}},
        date(2026, 1, 2),
        time(3, 4),
        datetime(2026, 1, 2, tzinfo=UTC),
    ],
)
def test_a_value_is_read_back_as_it_was(value: object) -> None:
    assert tomllib.loads(f"x = {literal_of(value)}")["x"] == value


def test_what_toml_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="TOML has no NoneType"):
        literal_of([None])


def test_keys_are_quoted_where_they_have_to_be() -> None:
    path = ("a", 0, "b c", "d.e")
    assert keys_text(path) == 'a."b c"."d.e"'
    assert parse_path(dotted(path[:1] + path[2:])) == ("a", "b c", "d.e")


def test_the_first_line_end_is_the_texts() -> None:
    assert [line_end(text) for text in ("", "a", "a\n", "a\r\n", "\na\r\n")] == [
        "\n",
        "\n",
        "\n",
        "\r\n",
        "\n",
    ]
