"""The printed table."""

from __future__ import annotations

import json

import pytest

from tools.bench.table import (
    Row,
    as_json,
    at_least,
    at_most,
    machine_facts,
    markdown,
    number,
    show,
)

ROWS = [
    Row("start", 0.42, "s", at_most(0.7)),
    Row("share", 0.25, "", at_least(0.3)),
    Row("for information", 1234.5, "1/s"),
]


def test_the_table_shows_each_value_beside_its_aim() -> None:
    assert markdown(ROWS).splitlines() == [
        "|                 | measured | unit |   aim | met |",
        "|-----------------|---------:|------|------:|-----|",
        "| start           |     0.42 | s    | ≤ 0.7 | yes |",
        "| share           |     0.25 |      | ≥ 0.3 | no  |",
        "| for information |     1234 | 1/s  |       |     |",
    ]


def test_without_aims_their_columns_are_left_out() -> None:
    assert markdown(ROWS[2:]).splitlines()[0] == "|                 | measured | unit |"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.126, "0.13"), (9.99, "9.99"), (12.34, "12.3"), (-12.34, "-12.3"), (123.4, "123")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_a_value_at_its_limit_meets_the_aim() -> None:
    assert at_most(3).met(3)
    assert at_least(3).met(3)
    assert not at_most(3).met(3.01)
    assert Row("x", 1, "").met is None


def test_the_document_holds_facts_and_rows() -> None:
    document = json.loads(as_json(ROWS, {"cpus": 2}))
    assert document["facts"] == {"cpus": 2}
    assert document["rows"][1] == {
        "name": "share",
        "value": 0.25,
        "unit": "",
        "aim": "≥ 0.3",
        "met": False,
    }


def test_facts_stand_below_the_table_or_in_the_document() -> None:
    shown = show(ROWS, {"cpus": 2, "took_s": 1.5}, as_document=False)
    assert shown == f"{markdown(ROWS)}\n\ncpus 2, took_s 1.5"
    assert show(ROWS, {"cpus": 2}, as_document=True) == as_json(ROWS, {"cpus": 2})
    assert {"cpus", "python", "took_s"} == set(machine_facts(0.0))
