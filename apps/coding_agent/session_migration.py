"""Session files of the versions 1 and 2, brought to version 3 when such a conversation goes on.

In version 1 entries had no ids: each followed the one before it, and a compaction gave the number
of the first entry it kept, the header being number 0. In version 2 a message of a hook had the role
`hookMessage`. Results of tools that do not say whether they are trusted are not. The new file
replaces the old one as a whole; the old one stays beside it. Blocking.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from coding_agent.session_format import VERSION, new_entry_id
from lemon_core.logs import get_logger
from lemon_core.private_files import open_new, sync_folder

log = get_logger(__name__)

OLD_VERSIONS: Final = (1, 2)
HOOK_ROLE: Final = "hookMessage"
RESULT_ROLE: Final = "tool_result"
_OF_HOOK: Final = ("customType", "content", "display", "details")


class Unmigratable(ValueError):
    """A line that means nothing; `number` counts from 1."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def version_of(header: dict[str, Any]) -> object:
    """The version of a file; the first one did not say it."""
    return header.get("version", 1)


def migrate(path: Path, lines: Sequence[bytes], version: int) -> list[bytes]:
    """Bring the file to version 3; its new lines. Raises `Unmigratable` and `OSError`.

    `lines` are its whole lines: what was torn at the end is left behind.
    """
    new = migrated(lines, version)
    data = b"".join(line + b"\n" for line in new)
    kept = path.with_suffix(f".v{version}")
    beside = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
    try:
        with open_new(beside) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        kept.unlink(missing_ok=True)
        os.link(path, kept)
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
    log.info("session.migrated", path=str(path), version=version, kept=str(kept))
    return new


def migrated(lines: Sequence[bytes], version: int) -> list[bytes]:
    """The lines as version 3 writes them; raises `Unmigratable`."""
    header, *entries = (_object(line, number) for number, line in enumerate(lines, 1))
    header["version"] = VERSION
    if version == 1:
        _give_ids(entries)
    current = (_with_trust(_without_hook_role(entry)) for entry in entries)
    return [orjson.dumps(each) for each in (header, *current)]


def _give_ids(entries: Sequence[dict[str, Any]]) -> None:
    ids: list[str] = []
    taken: set[str] = set()
    for number, entry in enumerate(entries, 2):
        entry_id = new_entry_id(taken)
        taken.add(entry_id)
        entry["id"] = entry_id
        if ids:
            entry["parentId"] = ids[-1]
        if "firstKeptEntryIndex" in entry:
            index = entry.pop("firstKeptEntryIndex")
            if not isinstance(index, int) or not 1 <= index <= len(ids):
                raise Unmigratable(number, f"firstKeptEntryIndex {index!r} is no earlier entry")
            entry["firstKeptEntryId"] = ids[index - 1]
        ids.append(entry_id)


def _without_hook_role(entry: dict[str, Any]) -> dict[str, Any]:
    message = entry.get("message")
    if entry.get("type") != "message" or not isinstance(message, dict):
        return entry
    if message.get("role") != HOOK_ROLE:
        return entry
    facts = {name: message[name] for name in _OF_HOOK if message.get(name) is not None}
    rest = {name: value for name, value in entry.items() if name != "message"}
    return {**rest, "type": "customMessage", **facts}


def _with_trust(entry: dict[str, Any]) -> dict[str, Any]:
    message = entry.get("message")
    if not isinstance(message, dict) or message.get("role") != RESULT_ROLE or "trust" in message:
        return entry
    # Left out it would read as trusted, and it may be a page of the web.
    return {**entry, "message": {**message, "trust": "untrusted"}}


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise Unmigratable(number, str(exc).split(":", 1)[0]) from exc
    if not isinstance(value, dict):
        raise Unmigratable(number, "not a JSON object")
    return value
