"""Reading a file and finding lines (specification lemon_core 10.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.config.source import (
    MAX_FILE_BYTES,
    KeyPath,
    Problem,
    dotted,
    parse_dotted,
    parse_toml,
    read_toml,
)

FILE = Path("/x/config.toml")

DOCUMENT = b'''\
# comment
top = 1

[a.b]
text = """
[not.a.header]
key = 1
"""
list = [
  1,
  # 2,
  3,
]
inline = { x = { y = 1 } }
c.d = 2
"odd key" = 3

[[a.rows]]
id = 1
[[a.rows]]
id = 2
[a.rows.deep]
z = 1
[[a.rows.more]]
q = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("a",), 4),
        (("a", "b"), 4),
        (("a", "b", "text"), 5),
        (("a", "b", "list"), 9),
        (("a", "b", "list", 2), 9),
        (("a", "b", "inline", "x", "y"), 14),
        (("a", "b", "c", "d"), 15),
        (("a", "b", "odd key"), 16),
        (("a", "b", "missing"), 4),
        (("a", "rows", 0, "id"), 19),
        (("a", "rows", 1), 20),
        (("a", "rows", 1, "id"), 21),
        (("a", "rows", 1, "deep", "z"), 23),
        (("a", "rows", 1, "more", 0, "q"), 25),
        (("nowhere",), 0),
    ],
)
def test_the_line_of_a_key(path: KeyPath, line: int) -> None:
    file = parse_toml(FILE, DOCUMENT)
    assert file.problem is None
    assert file.line_of(path) == line


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"a = 1\nb = \n", 2),
        (b"a = 1\na = 2\n", 2),
        (b'a = 1\n\nb = """open\n\n', 3),
        (b"a = [1,\n2\n", 2),
        (b"[a\n", 1),
        (b"a = 1\n# \xff\n", 2),
    ],
)
def test_a_malformed_file_has_a_line(raw: bytes, line: int) -> None:
    problem = parse_toml(FILE, raw).problem
    assert problem is not None
    assert problem.line == line
    assert "(at" not in problem.message


def test_windows_files_are_read() -> None:
    file = parse_toml(FILE, b"\xef\xbb\xbfa = 1\r\n[b]\r\nc = 2\r\n")
    assert file.data == {"a": 1, "b": {"c": 2}}
    assert file.line_of(("b", "c")) == 3


def test_a_file_that_nobody_wrote_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert read_toml(path).problem == Problem((), f"is larger than {MAX_FILE_BYTES} bytes")
    deep = parse_toml(FILE, b"a." * 10_000 + b"a = 1")
    assert deep.problem == Problem((), "malformed TOML: nested too deeply")


def test_lines_after_an_endless_statement_are_unknown() -> None:
    file = parse_toml(FILE, b"a = [\n" + b"1,\n" * 1_000 + b"]\nb = 1\n")
    assert file.problem is None
    assert file.line_of(("b",)) == 0


def test_no_file_reads_as_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none.toml", tmp_path / "file" / "config.toml"):
        file = read_toml(path)
        assert (file.data, file.problem) == ({}, None)


def test_a_path_is_one_line_whatever_its_keys_hold() -> None:
    assert dotted(("a", "b-c", 0, "d")) == "a.b-c[0].d"
    assert dotted(("a", 'x"\n: y')) == 'a."x\\"\\u000a: y"'
    assert Problem(("a",), "is wrong", 3).describe("f") == "f:3: a: is wrong"
    assert Problem((), "is wrong").describe("f") == "f: is wrong"


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_a_path_reads_back_and_is_one_line(names: list[str]) -> None:
    text = dotted(tuple(names))
    assert text.isprintable()
    assert parse_dotted(text) == tuple(names)


@pytest.mark.parametrize(
    "text", ["", " ", "a..b", "a.", "a b", "a = 1 #", "a = 1\nb", "[a]", "a[0]", "{a = 1}", "'"]
)
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="is no dotted path"):
        parse_dotted(text)
