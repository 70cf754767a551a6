"""Stored maps as dataclasses: checked where they leave the database."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from lemon_core.store.errors import StoreCorrupt

T = TypeVar("T")


def parse_row(cls: type[T], value: object, what: str) -> T:
    """`value` as the dataclass `cls`; raises `StoreCorrupt`, calling the record `what`.

    Fields that `cls` does not know are passed over: a later version may have written them.
    """
    try:
        return cast(T, _adapter(cast(Hashable, cls)).validate_python(value))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        raise StoreCorrupt(f"{what} is damaged: {where}: {first['msg']}") from exc


@cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    # `cache` takes what is hashable, and a class is; the adapter takes any type.
    return TypeAdapter(cast(Any, cls))
