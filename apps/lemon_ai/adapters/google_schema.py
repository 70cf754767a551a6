"""A JSON Schema as Gemini takes it for the parameters of a function.

The service knows a part of the vocabulary and answers 400 to the rest. What has another form
there is rewritten; what has none is left out: the model then reads less, and the tool itself
checks its arguments as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final = """
    $anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary
    additionalItems additionalProperties contains contentEncoding contentMediaType contentSchema
    definitions dependencies dependentRequired dependentSchemas deprecated else examples
    exclusiveMaximum exclusiveMinimum if maxContains minContains multipleOf not patternProperties
    prefixItems propertyNames readOnly strict then unevaluatedItems unevaluatedProperties
    uniqueItems writeOnly
"""
_REFUSED: Final = frozenset(_WORDS.split())
_FORMATS: Final = frozenset({"enum", "date-time", "int32", "int64", "float", "double"})
Json = dict[str, Any]


def gemini_schema(schema: Mapping[str, Any]) -> Json | None:
    """The parameters of a function, or None for a function without any."""
    cleaned = _cleaned(schema, schema, frozenset())
    is_bare = cleaned.keys() <= {"type", "properties", "required"}
    # An object without properties is refused.
    return None if is_bare and not cleaned.get("properties") else cleaned


def _cleaned(schema: Mapping[str, Any], root: Mapping[str, Any], seen: frozenset[str]) -> Json:
    """`seen`: the references that lead here, which a schema may make again and again."""
    schema, seen = _flat(schema, root, seen)
    out: Json = {}
    for key, value in schema.items():
        if key in ("anyOf", "oneOf") and isinstance(value, list):
            out["anyOf"] = [_cleaned(v, root, seen) for v in value if isinstance(v, Mapping)]
        elif key == "properties" and isinstance(value, Mapping):
            out[key] = {
                name: _cleaned(item, root, seen)
                for name, item in value.items()  # names, not keywords
                if isinstance(item, Mapping)
            }
        elif key == "items" and isinstance(value, Mapping):
            out[key] = _cleaned(value, root, seen)
        else:
            out |= _keyword(key, value)
    return _whole(out)


def _flat(
    schema: Mapping[str, Any], root: Mapping[str, Any], seen: frozenset[str]
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The schema with what it refers to, and all parts of an `allOf`, in itself."""
    while "$ref" in schema or "allOf" in schema:
        reference = schema.get("$ref")
        parts = schema.get("allOf")
        merged: Json = {}
        if isinstance(reference, str):
            if reference in seen:  # it would have no end
                return {"type": "object"}, seen
            seen |= {reference}
            merged = dict(_target(reference, root))
        for part in parts if isinstance(parts, list) else ():
            merged = _joined(merged, part) if isinstance(part, Mapping) else merged
        own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        schema = _joined(merged, own)
    return schema, seen


def _joined(left: Mapping[str, Any], right: Mapping[str, Any]) -> Json:
    joined = {**left, **right}
    if isinstance(left.get("properties"), Mapping) and isinstance(right.get("properties"), Mapping):
        joined["properties"] = {**left["properties"], **right["properties"]}
    if isinstance(left.get("required"), list) and isinstance(right.get("required"), list):
        joined["required"] = list(dict.fromkeys([*left["required"], *right["required"]]))
    return joined


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference inside the document leads to; an object of any kind where it leads out."""
    found: object = root if reference.startswith("#") else None
    for step in reference.lstrip("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {"type": "object"}


def _keyword(key: str, value: object) -> Json:
    """One keyword in the service's form; empty when it has none."""
    if key in _REFUSED or (key == "format" and value not in _FORMATS):
        return {}
    if key == "const":
        return {"enum": [value]} if isinstance(value, str) else {}
    if key == "enum":  # of texts only
        texts = [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
        return {"enum": texts} if texts else {}
    if key == "type" and isinstance(value, list):
        return _union(value)
    return {key: value}


def _union(types: list[Any]) -> Json:
    kinds = [kind for kind in types if kind != "null"]
    nullable = {"nullable": True} if len(kinds) != len(types) else {}
    if len(kinds) == 1:
        return {"type": kinds[0], **nullable}
    return {"anyOf": [{"type": kind} for kind in kinds], **nullable} if kinds else nullable


def _whole(schema: Json) -> Json:
    """The rules that reach over several keywords."""
    choices = schema.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        schema = {**schema, "anyOf": rest, "nullable": True}
        if len(rest) == 1:
            del schema["anyOf"]
            schema = {**rest[0], **schema}
    if schema.get("type") == "array" and "items" not in schema:
        schema["items"] = {"type": "string"}  # the service asks for some
    if "enum" in schema and "type" not in schema:
        schema["type"] = "string"
    if isinstance(schema.get("required"), list):
        names = [n for n in schema["required"] if n in (schema.get("properties") or {})]
        schema = {**schema, "required": names}
        if not names:
            del schema["required"]
    return schema
