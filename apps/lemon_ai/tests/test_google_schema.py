"""JSON Schemas for Gemini."""

from __future__ import annotations

from typing import Any

import pytest

from lemon_ai.adapters.google_schema import gemini_schema


def of(schema: dict[str, Any]) -> Any:
    """What becomes of a property with this schema."""
    cleaned = gemini_schema({"type": "object", "properties": {"p": schema}})
    assert cleaned is not None
    return cleaned["properties"]["p"]


def test_refused_keywords_go_on_every_level_and_names_stay() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "additionalProperties": {"type": "string", "examples": ["x"], "minLength": 1},
            "list": {
                "type": "array",
                "uniqueItems": True,
                "items": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "required": ["list", "gone"],
    }
    assert gemini_schema(schema) == {
        "type": "object",
        "properties": {
            "additionalProperties": {"type": "string", "minLength": 1},
            "list": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["list"],
    }
    assert schema["additionalProperties"] is False  # the caller's own is as it was


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        (
            {"type": ["string", "integer"]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        (
            {"oneOf": [{"type": "string"}, {"const": "x"}]},
            {"anyOf": [{"type": "string"}, {"enum": ["x"], "type": "string"}]},
        ),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "d"},
            {"type": "integer", "nullable": True, "description": "d"},
        ),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer"}),
        ({"enum": ["a", 1]}, {"enum": ["a"], "type": "string"}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 5}, {"type": "number", "maximum": 5}),
    ],
)
def test_what_has_another_form_is_rewritten(schema: dict[str, Any], expected: object) -> None:
    assert of(schema) == expected


def test_references_and_parts_are_put_in() -> None:
    schema = {
        "type": "object",
        "$defs": {
            "name": {"type": "string", "description": "a name"},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
        "properties": {
            "a": {"$ref": "#/$defs/name", "description": "mine"},
            "b": {
                "allOf": [
                    {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
                    {"properties": {"y": {"$ref": "#/$defs/name"}}, "required": ["y"]},
                ]
            },
            "c": {"$ref": "#/$defs/node"},
            "d": {"$ref": "elsewhere.json"},
        },
    }
    assert gemini_schema(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "mine"},
            "b": {
                "type": "object",
                "properties": {
                    "x": {"type": "string"},
                    "y": {"type": "string", "description": "a name"},
                },
                "required": ["x", "y"],
            },
            "c": {"type": "object", "properties": {"next": {"type": "object"}}},
            "d": {"type": "object"},
        },
    }


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": False}],
)
def test_a_function_without_parameters_has_none(schema: dict[str, Any]) -> None:
    assert gemini_schema(schema) is None
