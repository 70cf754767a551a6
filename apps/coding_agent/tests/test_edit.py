"""`edit` and how it finds its text (specification coding_agent 7, 11.12)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools.edit import EDIT, replace_once
from coding_agent.tools.fuzzy import Found, find
from lemon_agent import ToolError
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

TEXT = "".join(f"line {n}\n" for n in range(1, 13))


async def test_edit_changes_the_one_place_and_shows_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    result = await call(
        EDIT, tool_env(tmp_path), path="a.txt", old_text="line 6\nline 7", new_text="six\nline 7"
    )
    assert (tmp_path / "a.txt").read_text() == TEXT.replace("line 6", "six")
    diff = "\n".join(
        [
            "@@ -2,9 +2,9 @@",
            " line 2",
            " line 3",
            " line 4",
            " line 5",
            "-line 6",
            "+six",
            " line 7",
            " line 8",
            " line 9",
            " line 10",
        ]
    )
    assert result.text == f"Edited a.txt\n{diff}"
    told = details(result)
    kept = told.pop("checkpoint_id")
    assert told == {
        "path": "a.txt",
        "diff": diff,
        "first_changed_line": 6,
        "checkpoint_kind": "filesystem",
    }
    assert kept.startswith("chk_")


@pytest.mark.parametrize(
    ("before", "old", "new", "after", "diff"),
    [
        ("a", "a", "b", "b", "@@ -1,1 +1,1 @@\n-a\n+b"),
        ("a\n", "a\n", "", "", "@@ -1,1 +1,0 @@\n-a"),
        ("a\nc\n", "a\n", "a\nb\n", "a\nb\nc\n", "@@ -1,2 +1,3 @@\n a\n+b\n c"),
        ("a\nb", "b", "", "a\n", "@@ -1,2 +1,2 @@\n a\n-b\n+"),
        ("ab", "b", "\n", "a\n", "@@ -1,1 +1,2 @@\n-ab\n+a\n+"),
    ],
)
def test_small_files_are_shown_right(
    before: str, old: str, new: str, after: str, diff: str
) -> None:
    edited = replace_once(before.encode(), old, new, "f")
    assert (edited.content.decode(), edited.diff) == (after, diff)


@pytest.mark.behaviour("coding_agent.12", "coding_agent.101")
def test_only_the_bytes_of_the_line_change() -> None:
    """Windows line ends and the byte order mark are kept, whatever the model writes."""
    data = b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"
    assert replace_once(data, "two\n", "2\nzwei\n", "f").content == (
        b"\xef\xbb\xbfone\r\n2\r\nzwei\r\nthree\r\n"
    )
    assert replace_once(data, "two\r\nthree", "x", "f").content == b"\xef\xbb\xbfone\r\nx\r\n"
    mixed = b"one\r\ntwo\nthree\r\n"
    assert replace_once(mixed, "two", "2", "f").content == b"one\r\n2\nthree\r\n"
    assert replace_once(mixed, "one", "1\n2", "f").content == b"1\r\n2\r\ntwo\nthree\r\n"
    assert replace_once(mixed, "two", "1\n2", "f").content == b"one\r\n1\n2\nthree\r\n"


@pytest.mark.behaviour("coding_agent.101")
@pytest.mark.parametrize(
    "data",
    [b"caf\xe9", "caf".encode("utf-16"), "caf".encode("utf-16-le"), "caf".encode("utf-32-be")],
)
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(ToolError, match="f is not UTF-8 text"):
        replace_once(data, "caf", "x", "f")


async def test_a_file_that_changed_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("mine")

    async def meanwhile(*_: object) -> dict[str, object]:
        (tmp_path / "a.txt").write_text("mine and yours")
        return {}

    monkeypatch.setattr("coding_agent.tools.edit.keep_before", meanwhile)
    with pytest.raises(ToolError, match="was changed by somebody else meanwhile"):
        await call(EDIT, tool_env(tmp_path), path="a.txt", old_text="mine", new_text="x")
    assert (tmp_path / "a.txt").read_text() == "mine and yours"


@pytest.mark.behaviour("coding_agent.12")
@pytest.mark.parametrize(
    ("text", "old", "problem"),
    [
        ("a", "b", "old_text was not found in f"),
        ("a a", "a", "Found 2 occurrences of old_text in f"),
        ("aXa aXaXa", "aXa", "Found 3 occurrences"),
        ("x = 1\nx  =  1\n", "x = 1", "Found 2 occurrences"),
        ("a", "", "old_text is empty"),
        ("a", "a", "No changes made to f"),
    ],
)
def test_a_text_that_is_missing_or_not_the_only_one_is_refused(
    text: str, old: str, problem: str
) -> None:
    """Also when the second occurrence differs only in what is overlooked."""
    with pytest.raises(ToolError, match=problem):
        replace_once(text.encode(), old, "a", "f")


@pytest.mark.parametrize(
    ("text", "old", "after"),
    [
        ("a  \nb\t\nc\n", "a\nb\n", "<>c\n"),
        ("if x:\n\treturn  1\n", "if x:\n    return 1", "<>\n"),
        ("say(\u201chi\u201d)  # it\u2019s", 'say("hi")  # it\'s', "<>"),
        ("pages 1\u20132", "1-2", "pages <>"),
        ("pages 1-2", "1\u20142", "pages <>"),
        ("end\nnext", "end  ", "<>\nnext"),
        ("a\u00a0b", "a b", "<>"),
    ],
)
def test_slips_of_a_copy_are_overlooked(text: str, old: str, after: str) -> None:
    assert replace_once(text.encode(), old, "<>", "f").content.decode() == after


@given(st.text("a \t\n\u2019-", max_size=12), st.text("a b'", min_size=1, max_size=4))
def test_what_is_found_reads_like_what_was_sought(text: str, wanted: str) -> None:
    found = find(text, wanted)

    def fold(part: str) -> str:
        return " ".join(part.replace("\u2019", "'").split())

    if found.count == 1:
        assert fold(text[found.start : found.end]) == fold(wanted)
    assert found.count >= (wanted in text)


def test_white_space_alone_is_meant_exactly() -> None:
    assert find("a  b\n", "  ") == Found(1, 1, 3)
    assert find("a b", "\t") == Found(0)


async def test_an_edit_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    small = ToolPolicy.parse({"max_file_size": 3})
    for env, path, old, problem in [
        (tool_env(tmp_path), "b.txt", "text", "b.txt: no such file"),
        (tool_env(tmp_path), ".", "text", "is a directory"),
        (tool_env(tmp_path), "/etc/hosts", "text", "outside the workspace"),
        (tool_env(tmp_path), "a.txt", "word", "not found"),
        (tool_env(tmp_path, read_only=True), "a.txt", "text", "read-only"),
        (tool_env(tmp_path, policy=small), "a.txt", "text", "the policy allows 3"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(EDIT, env, path=path, old_text=old, new_text="longer")
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "text"
