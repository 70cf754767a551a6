from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_agent.arguments import MAX_ERRORS, Validator, coerce_arguments

Json = dict[str, Any]


def properties(**fields: Json) -> Json:
    return {"type": "object", "properties": fields}


@pytest.mark.parametrize(
    ("schema", "given_value", "expected"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, " -12 ", -12),
        ({"type": "integer"}, 3.0, 3),
        ({"type": "integer"}, "3x", "3x"),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, True, True),
        ({"type": "integer"}, "9" * 5_000, "9" * 5_000),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "3.5e2", 350.0),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "inf", "inf"),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "boolean"}, 1, 1),
        ({"type": "string"}, 3, 3),
        ({"type": "string"}, "null", "null"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["integer", "string"]}, "3", 3),
        ({"type": ["string", "integer"]}, "3", "3"),
        ({"type": ["boolean", "integer"]}, "3", 3),
        ({"type": "array"}, "a", ["a"]),
        ({"type": "array", "items": {"type": "integer"}}, "3", [3]),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "array"}, '["a", "b"]', ["a", "b"]),
        ({"type": "array"}, "[broken", ["[broken"]),
        ({"type": "array"}, {"a": 1}, {"a": 1}),
        ({"type": "array"}, None, None),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "text", "text"),
        (properties(n={"type": "integer"}), '{"n": "3"}', {"n": 3}),
        (properties(n={"type": "integer"}), {"n": "3", "other": "3"}, {"n": 3, "other": "3"}),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "3"}, {"n": 3}),
        ({"items": {"type": "integer"}}, ["3"], [3]),
        ({}, "3", "3"),
    ],
)
def test_coercion_by_schema(schema: Json, given_value: object, expected: object) -> None:
    """Specification lemon_agent 5, the rules of coercion."""
    coerced = coerce_arguments({"v": given_value}, properties(v=schema))
    assert coerced == {"v": expected}
    assert type(coerced["v"]) is type(expected)


def test_properties_that_the_schema_does_not_know_are_kept() -> None:
    assert coerce_arguments({"a": "1", "b": "1"}, properties(a={"type": "integer"})) == {
        "a": 1,
        "b": "1",
    }


def test_errors_name_the_path_and_hide_the_value() -> None:
    validator = Validator(
        {
            **properties(
                path={"type": "string"},
                edits={"type": "array", "items": properties(line={"type": "integer"})},
            ),
            "required": ["path"],
            "additionalProperties": False,
        }
    )
    secret = "x" * 5_000
    assert validator.errors({"path": "a", "edits": [{"line": 1}]}) == []
    assert sorted(validator.errors({"edits": [{"line": 1}, {"line": secret}], "zz": 1})) == [
        'arguments: "path" is a required property',
        "arguments: Additional properties are not allowed ('zz' was unexpected)",
        'edits[1].line: the value is not of type "integer"',
    ]


def test_errors_are_few() -> None:
    validator = Validator(properties(a={"type": "array", "items": {"type": "integer"}}))
    assert len(validator.errors({"a": ["x"] * 100})) == MAX_ERRORS


def test_nullable_is_understood_where_it_is_a_keyword_and_left_alone_where_it_is_data() -> None:
    validator = Validator(
        properties(
            opt={"type": "string", "nullable": True},
            word={"type": "string", "enum": ["a"], "nullable": True},
            fixed={"const": {"type": "string", "nullable": True}},
        )
    )
    assert validator.errors({"opt": None, "word": None}) == []
    assert validator.errors({"fixed": {"type": "string", "nullable": True}}) == []
    assert validator.errors({"opt": 3}) != []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "wrong"},
        {"$ref": "http://127.0.0.1:9/other.json"},
        {"$ref": "file:///etc/hostname"},
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_and_reads_nothing_from_outside(
    schema: Json,
) -> None:
    (error,) = Validator(schema).errors({})
    assert error.startswith("the tool's own schema is invalid: ")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
TYPES = st.sampled_from(["object", "array", "boolean", "integer", "number", "string", "null"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True)}),
    lambda inner: st.fixed_dictionaries(
        {"type": TYPES},
        optional={
            "items": inner,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        },
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(SCHEMAS, st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=3))
def test_coercion_never_raises_is_stable_and_spoils_nothing_that_fits(
    schema: Json, arguments: Json
) -> None:
    wrapped = properties(a=schema, b=schema)
    once = coerce_arguments(arguments, wrapped)
    assert coerce_arguments(once, wrapped) == once
    validator = Validator(wrapped)
    if not validator.errors(arguments):
        assert validator.errors(once) == []
