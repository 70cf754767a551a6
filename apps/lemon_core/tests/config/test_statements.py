"""A document in pieces (specification lemon_core 10.2)."""

from __future__ import annotations

import pytest

from lemon_core.config.statements import MAX_STATEMENT_LINES, split_assignment, statements

DOCUMENT = """\
# comment
"a=b".c = "x # y"  # z
[t]  # header
l = [
  [1],
  [2]]
i = { x = { y = 1 } }
[[t.rows]]
[[t.rows.deep]]
[[t.rows]]
[[t.rows.deep]]
k = 1"""


def test_every_piece_has_its_path_and_place() -> None:
    found = statements(DOCUMENT)
    assert found.complete
    assert [(part.path, part.line, part.is_header) for part in found.items] == [
        (("a=b", "c"), 2, False),
        (("t",), 3, True),
        (("t", "l"), 4, False),
        (("t", "i"), 7, False),
        (("t", "rows", 0), 8, True),
        (("t", "rows", 0, "deep", 0), 9, True),
        (("t", "rows", 1), 10, True),
        (("t", "rows", 1, "deep", 0), 11, True),
        (("t", "rows", 1, "deep", 0, "k"), 12, False),
    ]
    assert "# comment\n" + "".join(DOCUMENT[p.start : p.end] for p in found.items) == DOCUMENT


def test_what_is_too_long_ends_the_search() -> None:
    text = "a = 1\nb = [\n" + "1,\n" * MAX_STATEMENT_LINES + "]\n"
    found = statements(text)
    assert not found.complete
    assert [part.path for part in found.items] == [("a",)]


def test_the_value_starts_behind_the_equals_sign_that_is_no_keys() -> None:
    text = "'a=b' . c = 'd=e'"
    keys, at = split_assignment(text)
    assert (keys, text[at:]) == (("a=b", "c"), " 'd=e'")
    with pytest.raises(ValueError, match="not an assignment"):
        split_assignment("[a]")
