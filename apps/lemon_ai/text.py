"""Small text and JSON helpers: partial arguments, lone surrogates."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
from pydantic_core import from_json

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_arguments(raw: str) -> tuple[dict[str, Any], str | None]:
    """The whole argument object of a tool call and None, or `({}, problem)`.

    No text at all is a call without arguments. Anything but one whole JSON object is a problem:
    such a call must not be executed.
    """
    if not raw.strip():
        return {}, None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        return {}, f"the arguments are not valid JSON: {exc.msg} at character {exc.pos}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {type(value).__name__}, not an object"
    return value, None


def parse_partial_object(raw: str) -> dict[str, Any]:
    """What can be read of a JSON object that is still arriving; `{}` when nothing can."""
    if not raw.strip():
        return {}
    try:
        value = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def replace_lone_surrogates(text: str) -> str:
    """The text with each surrogate that has no partner replaced by U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dump_json(value: object) -> bytes:
    """JSON bytes in the given key order; lone surrogates become U+FFFD instead of an error."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_clean(value))


def load_json(raw: bytes | str) -> Any:
    """Parse JSON from a wire; accepts lone surrogate escapes, which the fast parser refuses."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def _clean(value: object) -> object:
    match value:
        case str():
            return replace_lone_surrogates(value)
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case _:
            return value
