"""Configuration files as they may be shown: every key, and the values that say nothing private.

A value is shown when a section model knows its key, it has a meaning there, and the key neither
sounds sensitive nor holds free text. Of everything else there is the kind and the size. A file that
is no TOML is not shown at all: without its keys nobody can tell what is secret in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from lemon_core.config import keys
from lemon_core.config.source import KeyPath, dotted, read_toml
from lemon_core.doctor.redaction import Redactor

# What people write in their own words.
_FREE_TEXT: Final = frozenset({"system_prompt", "description", "avatar", "command_prefix", "name"})
# Containers whose inside is as well known as the keys above it.
_PLAIN_TABLES: Final = frozenset({"tool_policy"})


def config_view(path: Path, model: type[BaseModel], redactor: Redactor) -> dict[str, object]:
    """The file at `path` as JSON types: whether it is there, what is wrong, and its keys.

    `model` says which keys there are.
    """
    file = read_toml(path)
    view: dict[str, object] = {"path": redactor.text(str(path)), "exists": path.exists()}
    if file.problem is not None:
        view["problem"] = redactor.text(file.problem.describe(path.name))
        return view
    values: dict[str, object] = {}
    wrong = _meaningless(file.data, model)
    for key in keys.walk(file.data, model):
        value = keys.get(file.data, key.path)
        name = str(next((part for part in reversed(key.path) if isinstance(part, str)), ""))
        shown: object = _shape(value)
        is_open = key.known and name not in _FREE_TEXT and key.path not in wrong
        if is_open and (_is_plain(value) or name in _PLAIN_TABLES):
            shown = redactor.field(name, value)
        values[redactor.text(dotted(key.path))] = shown
    view["values"] = values
    return view


def _meaningless(data: Mapping[str, object], model: type[BaseModel]) -> frozenset[KeyPath]:
    """Where something stands that does not belong there, so that nobody knows what it is."""
    try:
        model.model_validate(data)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        return frozenset(error["loc"] for error in errors)
    return frozenset()


def _is_plain(value: object) -> bool:
    items = value if isinstance(value, list) else [value]
    return not any(isinstance(item, Mapping | list) for item in items)


def _shape(value: object) -> str:
    """What kind of value it is, and how large."""
    if isinstance(value, Mapping):
        return f"[table, {len(value)} keys]"
    if isinstance(value, list):
        return f"[list, {len(value)} items]"
    if isinstance(value, str):
        return f"[text, {len(value)} characters]"
    return f"[{type(value).__name__}]"
