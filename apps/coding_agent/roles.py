"""What a task's agent is told about its part: built in, or described by the user or the project."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from lemon_core.logs import get_logger

log = get_logger(__name__)

FILE: Final = "subagents.json"
MAX_FILE_BYTES: Final = 262_144
MAX_PROMPT_CHARS: Final = 8_000

BUILT_IN: Final[Mapping[str, str]] = {
    "research": "Find out what is asked. Change nothing. Give facts with the places they stand at.",
    "implement": "Make the change that is asked, in the style of what is there, and check it.",
    "review": "Judge the work. Change nothing. Name each fault with its place and its consequence.",
    "test": "Write and run tests for what is asked. Say what fails and why; do not hide a failure.",
}


_MENTION: Final = re.compile(r"(?:^|(?<=\s))@([A-Za-z0-9][A-Za-z0-9_-]*)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Mention:
    """A role that is spoken to, with the words before and after it."""

    prefix: str
    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class UnknownAgent:
    """Somebody is spoken to whom nobody knows."""

    code: ClassVar[str] = "unknown_agent"
    name: str


def parse_mention(text: str, known: Container[str]) -> Mention | UnknownAgent | None:
    """The first `@name` in the text; None without any."""
    found = _MENTION.search(text)
    if found is None:
        return None
    name = found.group(1)
    if name not in known:
        return UnknownAgent(name)
    return Mention(text[: found.start()].strip(), name, text[found.end() :].strip())


def roles(agent_dir: Path, cwd: str) -> dict[str, str]:
    """The roles by id: built in, then the user's, then the project's; the later one wins.

    They are words and give no power. It reads files, so a worker thread calls it.
    """
    found = dict(BUILT_IN)
    for path in (agent_dir / FILE, Path(cwd) / ".lemon" / FILE):
        found |= _read(path)
    return found


def _read(path: Path) -> dict[str, str]:
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return {}
        items = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        log.warning("roles.unreadable", path=str(path), error=str(exc))
        return {}
    return dict(role for item in items if (role := _role(item))) if isinstance(items, list) else {}


def _role(item: object) -> tuple[str, str] | None:
    match item:
        case {"id": str(role_id), "prompt": str(prompt)} if role_id.strip() and prompt.strip():
            return role_id.strip(), prompt.strip()[:MAX_PROMPT_CHARS]
        case _:
            return None
