"""How growing Markdown is cut into blocks that are printed once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_cli.chat.markdown_blocks import MarkdownBlocks, blocks_of


def blocks(text: str, size: int = 1) -> list[str]:
    cutter = MarkdownBlocks()
    found: list[str] = []
    for start in range(0, len(text), size):
        found += cutter.feed(text[start : start + size])
    return [*found, *cutter.finish()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n\nthree", ["one\ntwo", "three"]),
        ("# Title\ntext", ["# Title", "text"]),
        ("text\n# Title\n", ["text", "# Title"]),
        ("a:\n```py\nx\n\ny\n```\nb", ["a:", "```py\nx\n\ny\n```", "b"]),
        ("````\n```\n````\nafter", ["````\n```\n````", "after"]),
        ("~~~\n```\n~~~\n", ["~~~\n```\n~~~"]),
        ("1. a\n\n2. b\n\n   more\n\nafter", ["1. a\n\n2. b\n\n   more", "after"]),
        ("- a\n  ```\n  x\n\n  y\n  ```\n- b", ["- a\n  ```\n  x\n\n  y\n  ```\n- b"]),
        ("| a |\n|---|\n| 1 |\n\nx", ["| a |\n|---|\n| 1 |", "x"]),
        ("```\nopen", ["```\nopen"]),
        ("\n\n\n", []),
        ("", []),
    ],
)
def test_blocks(text: str, expected: list[str]) -> None:
    assert blocks(text) == expected


@given(st.text(alphabet="ab #-`~1.\n ", max_size=60), st.integers(1, 9))
def test_the_pieces_it_comes_in_make_no_difference_and_nothing_is_lost(
    text: str, size: int
) -> None:
    found = blocks(text, size)
    assert found == blocks(text, max(1, len(text)))
    assert "".join("".join(found).split()) == "".join(text.split())


def test_rest_is_what_is_in_no_block_yet() -> None:
    cutter = MarkdownBlocks()
    assert cutter.feed("one\n\ntwo") == []
    assert cutter.rest == "one\n\ntwo"
    assert cutter.feed("\nth") == ["one"]
    assert cutter.rest == "two\nth"


def test_a_whole_text_is_cut_as_if_it_had_come_in_pieces() -> None:
    assert blocks_of("# a\nb\n\n```\nc\n\nd\n```\n- e\n\n- f") == [
        "# a",
        "b",
        "```\nc\n\nd\n```",
        "- e\n\n- f",
    ]
    assert blocks_of("") == []
