"""Walking a table along the section models (specification lemon_core 10.1)."""

from __future__ import annotations

from typing import Annotated

from lemon_core.config import keys
from lemon_core.config.fields import PROJECT_SAFE, Opaque, Section
from lemon_core.config.keys import Key
from lemon_core.config.model import LemonConfig


class Leaf(Section):
    taste: Annotated[str, PROJECT_SAFE] = ""
    power: str = ""


class Tree(Section):
    leaf: Leaf | None = None
    rows: tuple[Leaf, ...] = ()
    named: dict[str, Leaf] = {}  # noqa: RUF012  # a default of a model is copied
    safe: Annotated[Leaf, PROJECT_SAFE] = Leaf.model_construct()
    opaque: Opaque | None = None


def test_every_key_with_a_value_is_told() -> None:
    data: dict[str, object] = {
        "leaf": {"taste": 1, "power": 2},
        "rows": [{"power": 3}, {"tast": 4}],
        "named": {"n": {"taste": 5}},
        "safe": {"power": 6},
        "opaque": {"anything": {"goes": 7}},
        "other": {"x": 8},
    }
    known = tuple(Leaf.model_fields)
    assert list(keys.walk(data, Tree)) == [
        Key(("leaf", "taste"), True, True),
        Key(("leaf", "power"), True, False),
        Key(("rows", 0, "power"), True, False),
        Key(("rows", 1, "tast"), False, False, known),
        Key(("named", "n", "taste"), True, True),
        Key(("safe", "power"), True, True),
        Key(("opaque",), True, False),
        Key(("other",), False, False, tuple(Tree.model_fields)),
    ]


def test_a_table_where_none_belongs_is_one_key() -> None:
    data: dict[str, object] = {"leaf": 1, "rows": {"x": 2}, "named": 3}
    assert [key.path for key in keys.walk(data, Tree)] == [("leaf",), ("rows", "x"), ("named",)]


def test_an_empty_list_is_a_value_and_an_empty_table_is_none() -> None:
    data: dict[str, object] = {"rows": [], "named": {}, "leaf": {}}
    assert list(keys.walk(data, Tree)) == [Key(("rows",), True, False)]


def test_exactly_these_keys_are_safe_in_a_project() -> None:
    """Specification lemon_core 10.1."""
    full = LemonConfig().model_dump(mode="json")
    full["profiles"]["default"]["tool_policy"] = {}
    full["runtime"]["compaction"] = {"any": 1}
    safe = {".".join(map(str, key.path)) for key in keys.walk(full, LemonConfig) if key.safe}
    assert safe == {
        "defaults.model",
        "defaults.thinking_level",
        "runtime.compaction.any",
        "runtime.theme",
        "tui.theme",
        "profiles.default.tool_policy",
    }


def test_put_get_and_remove() -> None:
    data: dict[str, object] = {"a": 1}
    keys.put(data, ("a", "b", "c"), 2)
    assert data == {"a": {"b": {"c": 2}}}
    assert keys.get(data, ("a", "b", "c")) == 2
    assert keys.get({"r": [{"x": 1}]}, ("r", 0, "x")) == 1
    assert keys.get(data, ("a", "b", "c", "d")) is None
    keys.remove(data, ("a", "none", "c"))
    keys.remove(data, ("a", "b", "c"))
    assert data == {"a": {"b": {}}}
    rows: dict[str, object] = {"t": {"rows": [{"id": 1}], "x": 1}}
    keys.remove(rows, ("t", "rows", 0, "id"))
    assert rows == {"t": {"x": 1}}
