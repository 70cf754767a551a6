"""Values that travel: what is JSON, and how something that is not becomes it.

The rules are those of the wire's `*_json` fields, so that both forms of the gateway see the same:
keys are text, numbers are finite, text is Unicode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

MAX_DEPTH = 100


def clean(text: str) -> str:
    """`text` without lone surrogates, which no wire form can carry."""
    if text.isascii():
        return text
    return text.encode(errors="replace").decode()


def is_json(value: object, depth: int = 0) -> bool:
    """True when `value` can travel as it is."""
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, str):
        return clean(value) == value
    if isinstance(value, float):
        return math.isfinite(value)
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and is_json(key) and is_json(item, depth + 1)
            for key, item in value.items()
        )
    return isinstance(value, list | tuple) and all(is_json(item, depth + 1) for item in value)


def plain(value: dict[str, object] | None) -> dict[str, object] | None:
    """`value` itself where it is JSON, else a copy with what is odd written as text."""
    if value is None or is_json(value):
        return value
    return {clean(str(key)): _plain(item, 1) for key, item in value.items()}


def _plain(value: object, depth: int) -> object:
    if isinstance(value, Mapping) and depth <= MAX_DEPTH:
        return {clean(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth <= MAX_DEPTH:
        return [_plain(item, depth + 1) for item in value]
    return value if is_json(value, depth) else clean(str(value))
