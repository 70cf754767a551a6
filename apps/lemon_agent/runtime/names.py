"""Provider names as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {"embedded": "local"}


def canonical_name(name: str) -> str:
    """The name in lower case with underscores, aliases resolved; it may still be unknown."""
    plain = name.strip().lower().replace("-", "_")
    return ALIASES.get(plain, plain)


def split_spec(spec: str, providers: Iterable[str]) -> tuple[str | None, str]:
    """Provider and model id of `provider:id`; (None, spec) when no known provider leads it.

    Model ids hold colons themselves (`qwen3:8b`), so only a known provider's name counts as one.
    """
    head, colon, rest = spec.strip().partition(":")
    name = canonical_name(head)
    if colon and name in providers and rest.strip():
        return name, rest.strip()
    return None, spec.strip()
