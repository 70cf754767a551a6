"""What a tool call changed, as far as its action tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_core.events import Action

MAX_LINES: Final = 40
# The arguments that `change_of` reads.
CHANGES: Final = frozenset({"old_text", "new_text", "content", "patch", "patch_text"})
_CUT: Final = "…"
_HEAD: Final = "@@ "


def diff_of(action: Action) -> str | None:
    """The change as lines that begin with `+`, `-`, a blank or `@@`; None when it is not known.

    Results are cut to a few hundred characters on their way, so the arguments are the second
    source: what was replaced and by what.
    """
    detail = action.detail or {}
    if action.kind != "file_change":
        return None
    result = detail.get("result")
    if isinstance(result, str) and not result.endswith(_CUT):
        told = _told(result)
        if told:
            return _limited(told)
    args = detail.get("args")
    return _limited(change_of(args)) if isinstance(args, Mapping) else None


def _told(result: str) -> list[str]:
    lines = result.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(_HEAD)), None)
    return [] if first is None else lines[first:]


def change_of(args: Mapping[str, object]) -> list[str]:
    """The change that a tool's arguments ask for, line by line; nothing when they ask for none."""
    old, new, content = args.get("old_text"), args.get("new_text"), args.get("content")
    patch = args.get("patch") or args.get("patch_text")
    if isinstance(old, str) and isinstance(new, str):
        from difflib import unified_diff

        lines = unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
        return [line for line in lines if not line.startswith(("---", "+++"))]
    if isinstance(content, str):
        return [f"+{line}" for line in content.splitlines()]
    if isinstance(patch, str):
        return patch.splitlines()
    return []


def _limited(lines: list[str]) -> str | None:
    if not lines:
        return None
    if len(lines) > MAX_LINES:
        left = len(lines) - MAX_LINES
        lines = [*lines[:MAX_LINES], f" … {left} more lines"]
    return "\n".join(lines)
