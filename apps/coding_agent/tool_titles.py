"""How a tool call is shown to people: its kind, its title and its arguments in few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_core.events import ActionKind

MAX_COMMAND_CHARS: Final = 60
MAX_PATTERN_CHARS: Final = 30
MAX_WEB_CHARS: Final = 50
MAX_ARGUMENT_CHARS: Final = 2_000

_KINDS: Final[Mapping[str, ActionKind]] = {
    "bash": "command",
    "write": "file_change",
    "edit": "file_change",
    "hashline_edit": "file_change",
    "patch": "file_change",
    "webfetch": "web_search",
    "websearch": "web_search",
    "task": "subagent",
    "agent": "subagent",
}


def kind_of(tool: str) -> ActionKind:
    """The kind of action that a call of `tool` is."""
    return _KINDS.get(tool, "tool")


def title_of(tool: str, args: Mapping[str, object]) -> str:
    """One short line; the tool's name when its arguments tell nothing."""
    if tool == "bash" and (command := _text(args, "command")):
        return f"`{cut(command.splitlines()[0], MAX_COMMAND_CHARS)}`"
    if tool in ("grep", "find") and (pattern := _text(args, "pattern")):
        return f"{tool}: {cut(pattern, MAX_PATTERN_CHARS)}"
    if tool in ("webfetch", "websearch") and (text := _text(args, "url") or _text(args, "query")):
        return f"{tool}: {cut(text, MAX_WEB_CHARS)}"
    if tool in ("task", "agent") and (text := _text(args, "description") or _text(args, "prompt")):
        return f"{tool}: {cut(' '.join(text.split()), MAX_WEB_CHARS)}"
    if path := _text(args, "path"):
        return f"{tool}: {'/'.join(path.rstrip('/').split('/')[-2:]) or '/'}"
    return tool


def cut(text: str, limit: int) -> str:
    """`text`, or its beginning and an ellipsis: at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shortened(value: object) -> object:
    """Arguments whose long texts are cut: every event of the call carries them."""
    match value:
        case str() if len(value) > MAX_ARGUMENT_CHARS:
            return f"{value[:MAX_ARGUMENT_CHARS]}… [{len(value)} characters]"
        case Mapping():
            return {key: shortened(item) for key, item in value.items()}
        case list():
            return [shortened(item) for item in value]
        case _:
            return value


def _text(args: Mapping[str, object], name: str) -> str:
    value = args.get(name)
    return value.strip() if isinstance(value, str) else ""
