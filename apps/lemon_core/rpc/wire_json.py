"""JSON inside messages: the `bytes *_json` fields."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic_core import from_json, to_json

from lemon_core.runs import InvalidCommand

_MAX_DEPTH = 100
_SCALARS = frozenset({str, int, bool, type(None)})


class InvalidMessage(InvalidCommand):
    """A message with a field that is not what the contract says; `field` names it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


class NotJson(InvalidMessage):
    """A value that no `*_json` field can carry."""


def dump_json(value: object, field: str) -> bytes:
    """`value` as UTF-8 JSON, key order kept; raises `NotJson` for what JSON cannot hold.

    Refused are NaN and infinities, keys that are not text, text that is not Unicode, other types
    than JSON's (a tuple counts as a list) and nesting beyond 100.
    """
    _check(value, field, 0)
    try:
        return to_json(value)
    except (ValueError, TypeError) as exc:
        raise NotJson(field, str(exc)) from exc


def dump_map(value: Mapping[str, object], field: str) -> bytes:
    """As `dump_json`, for a map; most are flat and take the short way."""
    for key, item in value.items():
        if type(key) is not str or type(item) not in _SCALARS:
            return dump_json(dict(value), field)
    try:
        return to_json(value if type(value) is dict else dict(value))
    except (ValueError, TypeError) as exc:
        raise NotJson(field, str(exc)) from exc


def load_json(data: bytes, field: str) -> object:
    """The value in `data`; raises `InvalidMessage`."""
    try:
        value: object = from_json(data, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidMessage(field, f"not JSON ({exc})") from exc
    return value


def load_map(data: bytes, field: str) -> dict[str, object]:
    """The map in `data`, empty bytes being the empty one; raises `InvalidMessage`."""
    if not data:
        return {}
    value = load_json(data, field)
    if not isinstance(value, dict):
        raise InvalidMessage(field, "expected a JSON object")
    return value


def _check(value: object, field: str, depth: int) -> None:
    if type(value) in _SCALARS:
        return
    if depth > _MAX_DEPTH:
        raise NotJson(field, f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(field, f"{value} is not a JSON number")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise NotJson(field, f"key {key!r} is not text")
            _check(item, field, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, field, depth + 1)
    elif not isinstance(value, str | int):
        raise NotJson(field, f"{type(value).__name__} is not JSON")
