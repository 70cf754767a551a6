"""Marks in the place of secrets."""

from __future__ import annotations

from lemon_core.secret_marks import SecretMarks, mark, marked_names

KEY = "sk-abcdefghijklmnop"


def test_a_value_becomes_a_mark_that_names_its_secret() -> None:
    marks = SecretMarks({"OPENAI_API_KEY": f" {KEY}\n", "LONGER": f"{KEY}-more", "SHORT": "abc"})
    text = f"key={KEY}; {KEY}-more; abc"
    masked = marks.masked(text)
    assert masked == f"key={mark('OPENAI_API_KEY')}; {mark('LONGER')}; abc"
    assert marked_names(masked) == ["OPENAI_API_KEY", "LONGER"]
    assert marks.masked(masked) == masked
    assert marked_names("no mark, \u27e6secret\u27e7, [secret X]") == []


def test_odd_names_make_marks_that_are_found_again() -> None:
    for name in ("two words", "a\u27e7b", ""):
        assert len(marked_names(f"x{mark(name)}y")) == 1


def test_texts_inside_of_structures_are_masked_and_the_rest_is_left_alone() -> None:
    marks = SecretMarks({"K": KEY})
    clean = {"a": ["x", 1, None], "b": {"c": (True, "y")}}
    assert marks.masked_value(clean) is clean
    assert marks.masked_value({"a": [KEY, 1], "b": clean}) == {"a": [mark("K"), 1], "b": clean}
    assert marks.masked_value((KEY,)) == (mark("K"),)
    assert not SecretMarks({})
