"""Keys and values as bytes: JSON, with tags for what JSON lacks. Nothing is ever pickled.

A tag is an object with one key: `{"__tuple__": […]}`, `{"__bytes__": base64}`, `{"__datetime__":
iso}`, `{"__int__": digits}` beyond 64 bits, `{"__model__": [name, version, fields]}`. A map of the
user's that looks like a tag is wrapped in `{"__map__": {…}}`. Encoding is canonical (sorted keys),
so equal values have equal bytes and compare-and-swap can compare those.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import cast

import orjson
from pydantic import BaseModel

from lemon_core.logs import get_logger
from lemon_core.store.errors import StoreCorrupt, UnsupportedValue

log = get_logger("lemon_core.store")

KeyPart = str | int
Key = str | int | tuple[KeyPart, ...]

_TAGS = frozenset({"__tuple__", "__bytes__", "__datetime__", "__int__", "__model__", "__map__"})
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def encode_key(key: Key) -> bytes:
    """The stored form of a key; distinct keys have distinct bytes."""
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or any(isinstance(p, bool) or not isinstance(p, str | int) for p in parts):
        raise UnsupportedValue(f"a store key is text, a whole number or a tuple of them: {key!r}")
    try:
        return orjson.dumps(key)
    except (orjson.JSONEncodeError, TypeError) as exc:
        raise UnsupportedValue(f"store key {key!r}: {exc}") from exc


def decode_key(data: bytes) -> Key:
    """The inverse of `encode_key`; raises `StoreCorrupt`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise StoreCorrupt(f"a stored key cannot be read: {data[:80]!r}") from exc
    if isinstance(value, list):
        return tuple(value)
    return cast(Key, value)


class Codec:
    """Values to bytes and back; knows the model types that were registered with it."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[type[BaseModel], int]] = {}
        self._by_type: dict[type[BaseModel], tuple[str, int]] = {}

    def register(
        self, model: type[BaseModel], *, name: str | None = None, version: int = 1
    ) -> None:
        """Let values of `model` be stored; `name` (default: the class's) is what the tag says."""
        tag = name or model.__name__
        known = self._by_name.get(tag)
        if known is not None and known[0] is not model:
            raise ValueError(f"another model is registered as {tag!r}")
        self._by_name[tag] = (model, version)
        self._by_type[model] = (tag, version)

    def encode(self, value: object) -> bytes:
        """Canonical bytes of `value`; raises `UnsupportedValue` for what cannot come back equal."""
        try:
            plain = self._lower(value)
            try:
                return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
            except orjson.JSONEncodeError:
                # Half a surrogate pair, as a stream cut in a bad place leaves it: legal in Python
                # text and in JSON escapes, not in UTF-8.
                return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
        except RecursionError as exc:
            raise UnsupportedValue("a stored value is nested too deeply") from exc

    def decode(self, data: bytes) -> object:
        """The value behind `data`; raises `StoreCorrupt`."""
        try:
            try:
                raw = orjson.loads(data)
            except orjson.JSONDecodeError:
                raw = json.loads(data)
            # Most values hold no tag; looking for one is far cheaper than walking the value.
            return self._lift(raw) if b'{"__' in data else raw
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            raise StoreCorrupt(f"a stored value cannot be read: {exc}") from exc

    def _lower(self, value: object) -> object:
        """`value` in JSON types; the same object when it already is, so that nothing is copied."""
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, int):
            return value if _INT_MIN <= value <= _INT_MAX else {"__int__": str(int(value))}
        if isinstance(value, float):
            if not math.isfinite(value):
                raise UnsupportedValue(f"{value} cannot be stored: JSON has no such number")
            return value
        if isinstance(value, list):
            return self._lower_list(value)
        if isinstance(value, Mapping):
            return self._lower_map(value)
        if isinstance(value, tuple):
            return {"__tuple__": [self._lower(item) for item in value]}
        if isinstance(value, bytes):
            return {"__bytes__": b64encode(value).decode()}
        if isinstance(value, datetime):
            return {"__datetime__": value.isoformat()}
        tag = self._by_type.get(type(value)) if isinstance(value, BaseModel) else None
        if isinstance(value, BaseModel) and tag is not None:
            return {"__model__": [*tag, value.model_dump(mode="json")]}
        raise UnsupportedValue(f"a value of type {type(value).__name__} cannot be stored")

    def _lower_list(self, items: list[object]) -> list[object]:
        lowered = [self._lower(item) for item in items]
        same = all(new is old for new, old in zip(lowered, items, strict=True))
        return items if same else lowered

    def _lower_map(self, fields: Mapping[object, object]) -> object:
        changed: dict[str, object] | None = None if type(fields) is dict else {}
        for key, item in fields.items():
            if not isinstance(key, str):
                raise UnsupportedValue(f"map key {key!r} cannot be stored: keys are text")
            lowered = self._lower(item)
            if changed is None and lowered is not item:
                changed = dict(cast(Mapping[str, object], fields))
            if changed is not None:
                changed[key] = lowered
        result = fields if changed is None else changed
        return {"__map__": result} if len(fields) == 1 and next(iter(fields)) in _TAGS else result

    def _lift(self, value: object) -> object:
        if isinstance(value, list):
            return [self._lift(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (tag := next(iter(value))) in _TAGS:
            return self._lift_tag(tag, value[tag])
        return {key: self._lift(item) for key, item in value.items()}

    def _lift_tag(self, tag: str, body: object) -> object:
        if tag == "__model__" and isinstance(body, list):
            return self._lift_model(*body)
        if tag == "__tuple__" and isinstance(body, list):
            return tuple(self._lift(item) for item in body)
        if tag == "__map__" and isinstance(body, dict):
            return {key: self._lift(item) for key, item in body.items()}
        if isinstance(body, str):
            match tag:
                case "__bytes__":
                    return b64decode(body, validate=True)
                case "__datetime__":
                    return datetime.fromisoformat(body)
                case "__int__":
                    return int(body)
        raise ValueError(f"malformed {tag}")

    def _lift_model(self, name: str, version: int, fields: dict[str, object]) -> object:
        known = self._by_name.get(name)
        if known is None:
            log.warning("store.unknown_model", model=name, version=version)
            return fields
        return known[0].model_validate(fields)
