"""Which keys a table holds, and what the section models say about each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Final, Union, get_args, get_origin

from pydantic import BaseModel

from lemon_core.config.fields import ProjectSafe
from lemon_core.config.source import KeyPath
from lemon_core.tool_policy import ToolPolicy

# A run has one executor; a key that once chose another one must not be silently ignored.
ENGINE_KEYS: Final = frozenset(
    {
        "engine",
        "default_engine",
        "engine_preference",
        "preferred_engine",
        "preferred_engines",
        "known_engine",
        "known_engines",
        "custom_engine",
        "custom_engines",
        "engine_registry",
        "engine_module",
        "engine_modules",
        "engines",
        "gateway_engines",
    }
)

RETIRED_SECTIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("agent",): "rename [agent] to [defaults] and [runtime], [agent.tools] to [runtime.tools]",
    ("agents",): "rename [agents.<id>] to [profiles.<id>]",
    ("tools",): "rename [tools] to [runtime.tools]",
    ("runtime", "cli"): "delete [runtime.cli]",
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: `known` to the models, and `safe` for a project's file to set."""

    path: KeyPath
    known: bool
    safe: bool
    suggestions: tuple[str, ...] = ()


def walk(
    data: Mapping[str, object], model: type[BaseModel], at: KeyPath = (), safe: bool = False
) -> Iterator[Key]:
    """Every key of `data` that holds a value of its own, told by `model`; tables are gone into."""
    for name, value in data.items():
        path = (*at, name)
        info = model.model_fields.get(name)
        if info is None:
            yield Key(path, False, safe, tuple(model.model_fields))
            continue
        is_safe = safe or any(isinstance(mark, ProjectSafe) for mark in info.metadata)
        yield from _inside(value, info.annotation, path, is_safe)


def _inside(value: object, annotation: object, path: KeyPath, safe: bool) -> Iterator[Key]:
    inner, many = _section_of(annotation)
    if inner is None:
        yield Key(path, True, safe)
    elif not many and isinstance(value, Mapping):
        yield from walk(value, inner, path, safe)
    elif many and value == []:
        yield Key(path, True, safe)  # it replaces whatever rows there were
    elif many and isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            yield from _inside(item, inner, (*path, name), safe)
    else:
        yield Key(path, True, safe)


def _section_of(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The section model that an annotation holds, and whether it holds many of them.

    A policy is one value: `ToolPolicy.parse` is stricter about its keys than a warning.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (None, False) if annotation is ToolPolicy else (annotation, False)
    for part in get_args(annotation):
        found, many = _section_of(part)
        if found is not None:
            return found, many or get_origin(annotation) not in (Union, UnionType)
    return None, False


def section_model(annotation: object) -> type[BaseModel] | None:
    """The one section model that an annotation holds; None for a value and for many sections."""
    found, many = _section_of(annotation)
    return None if many else found


def row_model(annotation: object) -> type[BaseModel] | None:
    """The section model that an annotation holds many of, in a list or by name."""
    found, many = _section_of(annotation)
    return found if many else None


def engine_keys(value: object, at: KeyPath = ()) -> Iterator[KeyPath]:
    """The path of every removed engine key, at any depth and inside arrays."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if _snake(name) in ENGINE_KEYS:
                yield (*at, name)
            else:
                yield from engine_keys(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from engine_keys(inner, (*at, index))


def copied(data: Mapping[str, object]) -> dict[str, object]:
    """Tables copied at every depth, so that taking a key out changes nobody else's."""
    return {
        name: copied(value) if isinstance(value, Mapping) else value for name, value in data.items()
    }


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()


def get(data: object, path: KeyPath) -> object:
    """The value at `path`; None when there is none."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data


def put(data: dict[str, object], path: KeyPath, value: object) -> None:
    """Set the value at `path` (names only), making the tables on the way."""
    *tables, last = [str(part) for part in path]
    for name in tables:
        inner = data.get(name)
        if not isinstance(inner, dict):
            inner = data[name] = {}
        data = inner
    data[last] = value


def remove(data: dict[str, object], path: KeyPath) -> None:
    """Drop the value at `path`; inside an array the whole array goes, half of one means nothing."""
    names: list[str] = []
    for part in path:
        if isinstance(part, int):
            break
        names.append(part)
    table: object = data
    for name in names[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if names and isinstance(table, dict):
        table.pop(names[-1], None)
