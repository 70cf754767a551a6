import pytest

from lemon_agent import SchemaCache, ToolSchemaSnapshot
from lemon_agent.tests.harness import make_tool

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def test_a_snapshot_shows_name_description_and_parameters_in_order() -> None:
    snapshot = ToolSchemaSnapshot.of([make_tool("b", parameters=SCHEMA), make_tool("a")])
    assert snapshot.tool_names == ("b", "a")
    assert snapshot.tools[0].parameters is SCHEMA
    assert snapshot.id.startswith(f"tool_schema_{snapshot.fingerprint}_")
    assert len(snapshot.fingerprint) == 16


def test_the_fingerprint_is_of_what_the_model_is_shown() -> None:
    first = ToolSchemaSnapshot.of([make_tool("a", parameters=SCHEMA), make_tool("b")])
    same = ToolSchemaSnapshot.of([make_tool("a", parameters=dict(SCHEMA)), make_tool("b")])
    turned = ToolSchemaSnapshot.of([make_tool("b"), make_tool("a", parameters=SCHEMA)])
    assert same.fingerprint == first.fingerprint
    assert same.id != first.id
    assert turned.fingerprint != first.fingerprint


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        ToolSchemaSnapshot.of([make_tool("a"), make_tool("a")])


def test_the_cache_gives_the_same_snapshot_for_tools_made_anew_from_the_same_schemas() -> None:
    cache = SchemaCache()
    first = cache.snapshot([make_tool("a", parameters=SCHEMA)])
    assert cache.snapshot([make_tool("a", parameters=SCHEMA)]) is first
    assert cache.snapshot([make_tool("a", parameters=dict(SCHEMA))]) is not first
    assert cache.snapshot([]) is not first


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache = SchemaCache(max_entries=2)
    first, second = cache.snapshot([make_tool("a")]), cache.snapshot([make_tool("b")])
    cache.snapshot([make_tool("a")])
    cache.snapshot([make_tool("c")])
    assert cache.snapshot([make_tool("a")]) is first
    assert cache.snapshot([make_tool("b")]) is not second


def test_a_snapshot_knows_how_much_it_shows_a_model() -> None:
    one, two = make_tool("one"), make_tool("second")
    both = ToolSchemaSnapshot.of([one, two])
    apart = ToolSchemaSnapshot.of([one]).chars + ToolSchemaSnapshot.of([two]).chars
    assert both.chars == apart > len("one" + "second")
