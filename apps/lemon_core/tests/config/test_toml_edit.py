"""Setting and deleting one key (specification lemon_core 10.2, behaviour 33)."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.config.source import KeyPath
from lemon_core.config.statements import statements
from lemon_core.config.toml_edit import TomlEditError, delete, upsert
from lemon_core.config.toml_text import literal_of, parse_path

DOCUMENT = """\
# Mine; keep.
title = 'single quotes'   # told

[providers.openai]  # the big one
api_key_secret = "OPENAI_KEY"      # a reference, never a value
base_url = "https://${HOST}/v1"
models = [
  "a",  # first
  "b # no comment",
]
deployment_name_map = { "gpt 4" = "one", b = "${TWO}" }

# above defaults
[defaults]
model = "openai:x"
provider="openai"

[[gateway.rpc.tokens]]
id = "desk"
secret = "DESK"
[[gateway.rpc.tokens]]
id = "phone"
secret = "PHONE"

[runtime]
compaction.enabled = true
[a.b.c]
x = 1
"""


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that are only in one of the texts, when all others are the same in order."""
    # Not `splitlines`: a value may hold what that takes for the end of a line.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    head = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    if head is None:
        head = min(len(old), len(new))
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return old[head : len(old) - tail], new[head : len(new) - tail]


@pytest.mark.behaviour("lemon_core.33")
@pytest.mark.parametrize(
    ("path", "literal", "old", "new"),
    [
        ("title", "'x'", ["title = 'single quotes'   # told\n"], ["title = 'x'   # told\n"]),
        ("defaults.model", '"m"', ['model = "openai:x"\n'], ['model = "m"\n']),
        ("defaults.provider", '"p"', ['provider="openai"\n'], ['provider="p"\n']),
        ("defaults.thinking_level", '"low"', [], ['thinking_level = "low"\n']),
        (
            "providers.openai.api_key_secret",
            '"OTHER"',
            ['api_key_secret = "OPENAI_KEY"      # a reference, never a value\n'],
            ['api_key_secret = "OTHER"      # a reference, never a value\n'],
        ),
        (
            "providers.openai.models",
            "[]",
            ["models = [\n", '  "a",  # first\n', '  "b # no comment",\n', "]\n"],
            ["models = []\n"],
        ),
        ("providers.openai.region", '"eu"', [], ['region = "eu"\n']),
        (
            "providers.openai.deployment_name_map.b",
            '"three"',
            ['deployment_name_map = { "gpt 4" = "one", b = "${TWO}" }\n'],
            ['deployment_name_map = { "gpt 4" = "one", b = "three" }\n'],
        ),
        (
            "providers.openai.deployment_name_map.c",
            '"new"',
            ['deployment_name_map = { "gpt 4" = "one", b = "${TWO}" }\n'],
            ['deployment_name_map = { "gpt 4" = "one", b = "${TWO}", c = "new"}\n'],
        ),
        ("gateway.rpc.tokens[1].secret", '"X"', ['secret = "PHONE"\n'], ['secret = "X"\n']),
        ("gateway.rpc.tokens[0].origins", "['o']", [], ["origins = ['o']\n"]),
        ("runtime.compaction.trigger_ratio", "0.5", [], ["compaction.trigger_ratio = 0.5\n"]),
        ("runtime.theme", '"dark"', [], ['theme = "dark"\n']),
        ("store.path", '"/s"', [], ["\n", "[store]\n", 'path = "/s"\n']),
        ("a.b.y", "2", [], ["\n", "[a.b]\n", "y = 2\n"]),
        ("top", "1", [], ["top = 1\n"]),
        (
            'profiles."odd name".model',
            '"m"',
            [],
            ["\n", '[profiles."odd name"]\n', 'model = "m"\n'],
        ),
    ],
)
def test_one_key_is_set_and_the_rest_stays(
    path: str, literal: str, old: list[str], new: list[str]
) -> None:
    *table, key = parse_path(path)
    after = upsert(DOCUMENT, tuple(table), str(key), literal)
    assert changed(DOCUMENT, after) == (old, new)
    assert upsert(after, tuple(table), str(key), literal) == after


@pytest.mark.behaviour("lemon_core.33")
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("defaults.model", ['model = "openai:x"\n'], []),
        ("runtime.compaction.enabled", ["compaction.enabled = true\n"], []),
        ("gateway.rpc.tokens[0].secret", ['secret = "DESK"\n'], []),
        (
            "providers.openai.deployment_name_map.b",
            ['deployment_name_map = { "gpt 4" = "one", b = "${TWO}" }\n'],
            ['deployment_name_map = { "gpt 4" = "one"  }\n'],
        ),
        ("defaults.missing", [], []),
        ("no.such.table", [], []),
        ("providers.openai.deployment_name_map.missing", [], []),
    ],
)
def test_one_key_is_deleted_and_the_rest_stays(path: str, old: list[str], new: list[str]) -> None:
    *table, key = parse_path(path)
    after = delete(DOCUMENT, tuple(table), str(key))
    assert changed(DOCUMENT, after) == (old, new)
    assert delete(after, tuple(table), str(key)) == after


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("providers.openai", "providers.openai: is a table: set the keys in it"),
        ("a.b", "a.b: is a table: set the keys in it"),
        ("gateway.rpc.tokens", "gateway.rpc.tokens: is a table: set the keys in it"),
        (
            "gateway.rpc.tokens.id",
            "gateway.rpc.tokens.id: gateway.rpc.tokens is an array of tables: "
            "say which one, [0] first",
        ),
        ("gateway.rpc.tokens[2].id", "gateway.rpc.tokens[2].id: there is no gateway.rpc.tokens[2]"),
        ("title.x", "title.x: what it would stand in is no table"),
        ("providers.openai.models[0].x", "what it would stand in is no table"),
    ],
)
def test_what_is_no_single_key_is_refused(path: str, message: str) -> None:
    *table, key = parse_path(path)
    with pytest.raises(TomlEditError) as caught:
        upsert(DOCUMENT, tuple(table), str(key), "1")
    assert message in str(caught.value)


def test_a_table_is_not_deleted() -> None:
    with pytest.raises(TomlEditError, match=r"^a\.b: is a table: delete the keys in it$"):
        delete(DOCUMENT, ("a",), "b")


@pytest.mark.parametrize("literal", ["", "1 # c", "1\ny = 2", "nonsense", "[", '"a" "b"'])
def test_only_one_toml_value_is_taken(literal: str) -> None:
    with pytest.raises(TomlEditError, match="TOML value"):
        upsert(DOCUMENT, ("defaults",), "model", literal)


def test_a_malformed_text_is_refused() -> None:
    with pytest.raises(TomlEditError, match="malformed TOML"):
        upsert("a = = 1", (), "b", "1")


def test_a_value_of_hundreds_of_lines_is_refused() -> None:
    text = "a = [\n" + "1,\n" * 300 + "]\n"
    with pytest.raises(TomlEditError, match="too many lines"):
        upsert(text, (), "b", "1")


def test_line_ends_of_windows_stay() -> None:
    text = "a = 1\r\n[b]\r\nc = 2 # c\r\n"
    assert upsert(text, ("b",), "c", "3") == "a = 1\r\n[b]\r\nc = 3 # c\r\n"
    assert upsert(text, ("b",), "d", "3") == f"{text}d = 3\r\n"
    assert upsert(text, ("e",), "f", "4") == f"{text}\r\n[e]\r\nf = 4\r\n"
    assert delete(text, ("b",), "c") == "a = 1\r\n[b]\r\n"


def test_a_text_without_a_last_line_end_is_completed_only_where_it_grows() -> None:
    assert upsert("a = 1", (), "a", "2") == "a = 2"
    assert upsert("[t]\na = 1", ("t",), "b", "2") == "[t]\na = 1\nb = 2\n"
    assert upsert("", ("t",), "b", "2") == "[t]\nb = 2\n"
    assert upsert("", (), "b", "2") == "b = 2\n"
    assert upsert("# c\n", (), "b", "2") == "# c\nb = 2\n"
    assert upsert("# top\n\n# t\n[t]\n", (), "b", "2") == "# top\n\nb = 2\n\n# t\n[t]\n"


def test_separators_of_unicode_inside_a_comment_are_no_line_ends() -> None:
    text = "a = 1 # x\u2028b = 2\n"
    assert upsert(text, (), "c", "3") == f"{text}c = 3\n"


_KEYS = st.sampled_from(["a", "b", "c", "key.dot", "ü", "x_secret"])
_VALUES = st.recursive(
    st.one_of(
        st.integers(-5, 5),
        st.booleans(),
        st.text(max_size=6),
        st.floats(allow_nan=False),
        st.sampled_from(["${VAR}", "# no comment", 'q"uote', "two\nlines"]),
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def _documents(draw: st.DrawFn) -> str:
    """Tables of one level and two, arrays of tables, comments and blank lines."""
    lines: list[str] = []

    def body() -> None:
        for name in draw(st.lists(_KEYS, unique=True, max_size=3)):
            comment = draw(st.sampled_from(["", "  # told", "\t#"]))
            lines.extend(draw(st.sampled_from([[], [""], ["# above"]])))
            spaced = draw(st.sampled_from(["{}={}", "{} = {}", "  {}   =  {}"]))
            lines.append(spaced.format(literal_of(name), literal_of(draw(_VALUES))) + comment)

    body()
    for header in draw(st.lists(st.sampled_from(["t", "u", "t.a1", "v.w"]), unique=True)):
        lines.append(f"[{header}]")
        body()
    for _ in range(draw(st.integers(0, 2))):
        lines.append("[[rows]]")
        body()
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join(lines)
    return text + draw(st.sampled_from(["", end]))


_TABLES = st.sampled_from([(), ("t",), ("u",), ("t", "a1"), ("v", "w"), ("v",), ("new", "er")])


@pytest.mark.behaviour("lemon_core.33")
@settings(deadline=None)
@given(text=_documents(), table=_TABLES, key=_KEYS, value=_VALUES)
def test_whatever_the_document_only_the_key_changes(
    text: str, table: KeyPath, key: str, value: object
) -> None:
    before = tomllib.loads(text)
    after = upsert(text, table, key, literal_of(value))
    expected = before
    for name in table:
        expected = expected.setdefault(str(name), {})
    expected[key] = value
    assert tomllib.loads(after) == before
    end = "\r\n" if "\r\n" in text else "\n"
    old, new = (_ended(part, end) for part in (text, after))
    gone_lines, new_lines = changed(old, new)
    # What is gone is the key's own statement, and what came are it and perhaps its header.
    own = [s for s in statements(text).items if s.path == (*table, key)]
    assert "".join(gone_lines) in "".join(_ended(text[s.start : s.end], end) for s in own)
    assert len([line for line in new_lines if line.strip()]) <= 2
    without = delete(after, table, key)
    assert key not in _table(tomllib.loads(without), table)
    assert changed(_ended(after, end), _ended(without, end))[1] == []


def _ended(text: str, end: str) -> str:
    return text if not text or text.endswith("\n") else text + end


def _table(data: dict[str, object], table: KeyPath) -> dict[str, object]:
    for name in table:
        found = data[str(name)]
        assert isinstance(found, dict)
        data = found
    return data
