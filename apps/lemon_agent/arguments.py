"""Tool arguments: what a model probably meant, and whether it fits the tool's JSON schema.

Models write numbers as text, one item where a list is due and objects as JSON text. `coerce` mends
that by the schema, and only that: text is never made from anything else, and what does not fit is
left for the check, whose errors name the path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import jsonschema_rs

MAX_ERRORS: Final = 8
_INTEGER: Final = re.compile(r"[+-]?\d{1,300}")
_NO_FIT: Final = object()
# Keywords whose values are data and not schemas.
_DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "example", "examples"})

Schema = Mapping[str, Any]


class Validator:
    """Checks arguments against one schema; compiled with the first call."""

    __slots__ = ("_compiled", "_schema")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._compiled: jsonschema_rs.Validator | None = None

    def errors(self, arguments: Mapping[str, Any]) -> list[str]:
        """What is wrong, as `path: problem`, at most eight; empty when the arguments fit."""
        try:
            compiled = self._compiled = self._compiled or _compile(self._schema)
            if compiled.is_valid(arguments):
                return []
        except ValueError as exc:
            return [f"the tool's own schema is invalid: {str(exc).splitlines()[0]}"]
        return [
            f"{_path(error.instance_path)}: {error.message}"
            for error, _ in zip(compiled.iter_errors(arguments), range(MAX_ERRORS), strict=False)
        ]


def _compile(schema: Schema) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, because a run without tool calls needs no validator

    # The mask keeps long values out of the messages; the retriever keeps a schema that came from
    # outside from making this process read files and URLs.
    return jsonschema_rs.validator_for(
        _with_null(schema), mask="the value", retriever=_refuse_to_retrieve
    )


def _refuse_to_retrieve(uri: str) -> NoReturn:
    raise ValueError(f"references to other documents are not followed: {uri}")


def _with_null(schema: object) -> Any:
    """The schema with OpenAPI's `nullable: true` said in JSON Schema's words."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    said = {
        key: value if key in _DATA_KEYWORDS else _with_null(value) for key, value in schema.items()
    }
    if said.get("nullable") is True:
        if "type" in said:
            said["type"] = list(dict.fromkeys([*_declared_types(said), "null"]))
        if isinstance(said.get("enum"), list):
            said["enum"] = [*said["enum"], None]
    return said


def _path(parts: Sequence[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path.removeprefix(".") or "arguments"


# -- coercion --------------------------------------------------------------------------------


def coerce_arguments(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments, each value brought to the type its schema declares where that is clear."""
    return _properties(arguments, schema)


def _properties(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return dict(value)
    return {
        key: _value(item, properties[key]) if key in properties else item
        for key, item in value.items()
    }


def _value(value: object, schema: object) -> object:
    if not isinstance(schema, Mapping):
        return value
    types = _declared_types(schema)
    is_nullable = "null" in types or schema.get("nullable") is True
    if is_nullable and (value is None or value == "null"):
        return None
    for name in types:
        fitted = _to_type(name, value, schema)
        if fitted is not _NO_FIT:
            return fitted
    return value


def _declared_types(schema: Schema) -> list[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return [declared]
    if isinstance(declared, list):
        return [name for name in declared if isinstance(name, str)]
    if isinstance(schema.get("properties"), Mapping):
        return ["object"]
    return ["array"] if isinstance(schema.get("items"), Mapping) else []


def _to_type(name: str, value: object, schema: Schema) -> object:
    match name:
        case "object":
            found = _from_json(value, dict)
            return found if found is _NO_FIT else _properties(found, schema)
        case "array":
            return _to_array(value, schema)
        case "boolean":
            return _to_boolean(value)
        case "integer":
            return _to_integer(value)
        case "number":
            return _to_number(value)
        case "string":
            return value if isinstance(value, str) else _NO_FIT
        case _:
            return _NO_FIT


def _from_json(value: object, kind: type) -> Any:
    """The value when it is of this kind, or what its JSON text holds when that is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return _NO_FIT
    return value if isinstance(value, kind) else _NO_FIT


def _to_array(value: object, schema: Schema) -> object:
    found = _from_json(value, list)
    if found is _NO_FIT:
        if not isinstance(value, str | int | float):
            return _NO_FIT
        found = [value]
    items = schema.get("items")
    return [_value(item, items) for item in found]


def _to_boolean(value: object) -> object:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    return word == "true" if word in ("true", "false") else _NO_FIT


def _to_integer(value: object) -> object:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NO_FIT
    # JSON Schema counts 3.0 as an integer; tools get an int.
    if isinstance(value, float):
        return int(value) if value.is_integer() else _NO_FIT
    return value


def _to_number(value: object) -> object:
    whole = _to_integer(value)
    if whole is not _NO_FIT:
        return whole
    if isinstance(value, float):
        return value
    if not isinstance(value, str):
        return _NO_FIT
    try:
        number = float(value)
    except ValueError:
        return _NO_FIT
    return number if math.isfinite(number) else _NO_FIT
