"""`hashline_edit` and its anchors (specification coding_agent 7 and 11.12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools.anchors import LETTERS, letters_of, parse_anchor, tag_of
from coding_agent.tools.files import READ
from coding_agent.tools.hashline import HASHLINE_EDIT, apply_edits, parse_edit
from lemon_agent import ToolError
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

DATA = b"\xef\xbb\xbfone\r\n  two\r\n}\r\n}\r\nfive\r\n"


def edited(data: bytes, *edits: dict[str, Any]) -> bytes:
    return apply_edits(data, [parse_edit(edit) for edit in edits], "f").content


def at(number: int, line: str) -> str:
    return tag_of(number, line)


def test_a_tag_overlooks_white_space_and_tells_bare_brackets_apart() -> None:
    assert letters_of(1, "  a  b") == letters_of(9, "ab")
    assert letters_of(1, "}") != letters_of(2, "}")
    assert set(letters_of(1, "x")) <= set(LETTERS)
    assert parse_anchor(f" {tag_of(3, 'x')}:x = 1").number == 3
    for text in ("3", "3#zz", "#ZP", "x#ZP", ""):
        with pytest.raises(ToolError, match="is no anchor"):
            parse_anchor(text)


async def test_read_shows_the_anchors_that_the_edit_takes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(DATA)
    env = tool_env(tmp_path)
    shown = (await call(READ, env, path="a.py", hashlines=True)).text.splitlines()
    assert shown[1] == f"{at(2, 'two')}:  two"
    edit = {"op": "replace", "pos": shown[1], "lines": ["  2"]}
    result = await call(HASHLINE_EDIT, env, path="a.py", edits=[edit])
    assert (tmp_path / "a.py").read_bytes() == DATA.replace(b"  two", b"  2")
    told = details(result)
    assert (told["edits_applied"], told["noop_edits"], told["deduplicated_edits"]) == (1, 0, 0)
    assert told["first_changed_line"] == 2
    assert told["checkpoint_id"].startswith("chk_")
    assert "\n-  two\n+  2\n" in result.text


@pytest.mark.behaviour("coding_agent.12")
async def test_a_stale_anchor_changes_nothing_and_shows_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthree\n")
    edits = [
        {"op": "replace", "pos": at(1, "one"), "lines": ["1"]},
        {"op": "append", "pos": at(2, "other"), "lines": ["x"]},
        {"op": "prepend", "pos": at(9, "nine"), "lines": ["x"]},
    ]
    with pytest.raises(ToolError) as caught:
        await call(HASHLINE_EDIT, tool_env(tmp_path), path="a", edits=edits)
    rows = str(caught.value).splitlines()
    assert rows[0].startswith("2 anchors do not fit a any more; nothing was changed")
    assert f">>> {at(2, 'two')}:two" in rows
    assert f"    {at(1, 'one')}:one" in rows
    assert rows[-1] == ">>> there is no line 9: the file has 3 lines"
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\nthree\n"


def test_edits_are_done_from_the_bottom_up_and_equal_ones_once() -> None:
    replace = {"op": "replace", "pos": at(1, "one"), "end": at(2, "two"), "lines": ["1", "2", "2b"]}
    append = {"op": "append", "pos": at(5, "five"), "lines": ["six"]}
    prepend = {"op": "prepend", "pos": at(5, "five"), "lines": ["four"]}
    delete = {"op": "replace", "pos": at(3, "}"), "lines": []}
    after = edited(DATA, replace, replace, prepend, append, delete)
    assert after == b"\xef\xbb\xbf1\r\n2\r\n2b\r\n}\r\nfour\r\nfive\r\nsix\r\n"
    done = apply_edits(DATA, list(map(parse_edit, [replace, replace, append])), "f")
    assert (done.applied, done.noops, done.duplicates) == (2, 0, 1)


def test_the_ends_of_the_file_need_no_anchor() -> None:
    assert edited(b"a\nb", {"op": "append", "lines": ["c"]}) == b"a\nb\nc"
    assert edited(b"a\nb", {"op": "prepend", "lines": ["0", "1"]}) == b"0\n1\na\nb"
    assert edited(b"", {"op": "append", "lines": ["a"]}) == b"a\n"
    two = [{"op": "append", "lines": [text]} for text in "xy"]
    assert edited(b"a\n", *two) == b"a\nx\ny\n"


@pytest.mark.behaviour("coding_agent.101")
def test_each_line_keeps_its_own_end() -> None:
    mixed = b"one\r\ntwo\nthree\r\n"
    assert edited(mixed, {"op": "replace", "pos": at(2, "two"), "lines": ["2"]}) == (
        b"one\r\n2\nthree\r\n"
    )
    assert edited(mixed, {"op": "append", "pos": at(1, "one"), "lines": ["x"]}) == (
        b"one\r\nx\r\ntwo\nthree\r\n"
    )


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"op": "replace", "lines": ["x"]}, "replace needs pos"),
        ({"op": "append", "lines": []}, "append needs lines"),
        ({"op": "prepend", "end": "1#ZP", "lines": ["x"]}, "end belongs to replace"),
        ({"op": "replace", "pos": "2#ZP", "end": "1#ZP", "lines": []}, "stands before pos"),
        ({"op": "replace", "pos": "1", "lines": []}, "is no anchor"),
        ({"op": "replace", "pos": "1#ZP", "end": "", "lines": []}, "is no anchor"),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_overlooked(
    edit: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ToolError, match=problem):
        parse_edit(edit)


def test_two_edits_of_one_line_are_refused() -> None:
    one = {"op": "replace", "pos": at(1, "one"), "end": at(2, "two"), "lines": ["x"]}
    other = {"op": "replace", "pos": at(2, "two"), "lines": ["y"]}
    inside = {"op": "append", "pos": at(1, "one"), "lines": ["y"]}
    for second in (other, inside):
        with pytest.raises(ToolError, match="two edits change line 2"):
            edited(DATA, one, second)
    with pytest.raises(ToolError, match="No changes made to f"):
        edited(DATA, {"op": "replace", "pos": at(1, "one"), "lines": ["one"]})


async def test_policy_and_workspace_hold(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    edits = [{"op": "append", "lines": ["long line"]}]
    small = ToolPolicy.parse({"max_file_size": 3})
    for env, path, problem in [
        (tool_env(tmp_path, policy=small), "a", "the policy allows 3"),
        (tool_env(tmp_path, read_only=True), "a", "read-only"),
        (tool_env(tmp_path), "../a", "outside the workspace"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(HASHLINE_EDIT, env, path=path, edits=edits)
    (tmp_path / "b").write_bytes(b"\xff\xfea\0")
    with pytest.raises(ToolError, match="b is not UTF-8 text"):
        await call(HASHLINE_EDIT, tool_env(tmp_path), path="b", edits=edits)
    assert (tmp_path / "a").read_text() == "a\n"


LINES = st.lists(st.text("ab} ", max_size=3), min_size=1, max_size=6)


@given(LINES, st.integers(0, 5), LINES)
def test_any_line_can_be_replaced(lines: list[str], index: int, new: list[str]) -> None:
    number = index % len(lines) + 1
    before = "".join(f"{line}\n" for line in lines).encode()
    after = "".join(f"{line}\n" for line in [*lines[: number - 1], *new, *lines[number:]]).encode()
    edit = {"op": "replace", "pos": at(number, lines[number - 1]), "lines": new}
    if after == before:
        with pytest.raises(ToolError, match="No changes"):
            edited(before, edit)
    else:
        assert edited(before, edit) == after
