"""How many tokens something may be: a rough figure, never for bills or hard limits."""

from __future__ import annotations

from typing import Final

PER_TOKEN: Final = 4


def estimate_chars(text: str) -> int:
    """A quarter of the characters."""
    return len(text) // PER_TOKEN


def estimate_bytes(raw: bytes) -> int:
    """A quarter of the bytes."""
    return len(raw) // PER_TOKEN
