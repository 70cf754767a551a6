"""The examples below a command's usage."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """An epilog in which each of `commands` keeps its line."""
    # The mark keeps the formatter from filling the paragraph.
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])
