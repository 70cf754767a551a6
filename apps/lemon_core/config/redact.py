"""Which configuration values are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lemon_core.config.source import KeyPath

HIDDEN: Final = "[REDACTED]"
# Whole words of a key's name: `reserve_tokens` is a number, not a token.
_PRIVATE: Final = frozenset({"key", "token", "secret", "password"})
_NAMES: Final = frozenset({"service_account_json"})


def is_private(path: KeyPath) -> bool:
    """True when the value at `path` may be, or name, a credential."""
    last = next((part for part in reversed(path) if isinstance(part, str)), "")
    return last in _NAMES or not _PRIVATE.isdisjoint(re.split(r"[^a-z0-9]+", last.lower()))


def shown(path: KeyPath, value: object) -> object:
    """`value` as it may be printed, hidden at any depth where a key is private."""
    if is_private(path) and value is not None and not isinstance(value, bool):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: shown((*path, str(name)), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown((*path, index), inner) for index, inner in enumerate(value)]
    return value
