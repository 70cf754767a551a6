"""Reading a session file; it blocks, so a worker thread calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from coding_agent.errors import SessionCorrupt, SessionInvalid, SessionMissing
from coding_agent.session_format import VERSION, parse_message
from coding_agent.transcript import repaired
from lemon_ai import Message


@dataclass(frozen=True, slots=True)
class Torn:
    """The file's size, and its size without the line whose end is missing."""

    file_size: int
    whole_size: int


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A conversation as it can be continued.

    `messages` are those on the path to the last entry, repaired; `leaf_id` is the entry that the
    next one follows, None when there is none.
    """

    messages: list[Message]
    leaf_id: str | None
    ids: set[str]
    torn: Torn | None


@dataclass(slots=True)
class _Entries:
    """The entries so far. Each names an earlier one, so the last has no children."""

    parents: dict[str, str | None] = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    last: str | None = None

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry; raises ValueError with what is wrong with it."""
        entry_id, parent_id = entry.get("id"), entry.get("parentId")
        if not isinstance(entry_id, str) or entry_id in self.parents:
            raise ValueError(f"id {entry_id!r} is missing or used before")
        if parent_id is not None and parent_id not in self.parents:
            raise ValueError(f"parentId {parent_id!r} names no earlier entry")
        # Entries of other types stay where they are, and the model is not shown them.
        if entry.get("type") == "message":
            self.messages[entry_id] = parse_message(entry.get("message"))
        self.parents[entry_id] = parent_id
        self.last = entry_id

    def path(self) -> list[str]:
        """The ids from the first entry to the last."""
        ids: list[str] = []
        current = self.last
        while current is not None:
            ids.append(current)
            current = self.parents[current]
        return ids[::-1]


def read_session(path: Path, session_id: str, cwd: str) -> StoredSession:
    """The session of `cwd` in `path`; raises the three `ResumeError`s."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise SessionMissing(session_id, cwd) from exc
    except OSError as exc:
        raise SessionInvalid(session_id, f"{path}: {exc.strerror}") from exc
    lines = data.split(b"\n")
    torn_size = len(lines.pop())
    _check_header(lines[0] if lines else b"", session_id, cwd)
    entries = _Entries()
    for number, line in enumerate(lines[1:], 2):
        try:
            entries.add(_object(line))
        except ValueError as exc:
            problem = str(exc).split("\n", 1)[0]
            raise SessionCorrupt(session_id, path, number, problem) from exc
    messages, leaf_id = _continuable(entries)
    torn = Torn(len(data), len(data) - torn_size) if torn_size else None
    return StoredSession(messages, leaf_id, set(entries.parents), torn)


def _check_header(line: bytes, session_id: str, cwd: str) -> None:
    try:
        header = _object(line)
    except ValueError as exc:
        raise SessionInvalid(session_id, "its file does not begin with a header") from exc
    if header.get("type") != "session" or header.get("id") != session_id:
        raise SessionInvalid(session_id, "its file has the header of something else")
    if header.get("version") != VERSION:
        raise SessionInvalid(session_id, f"version {header.get('version')} cannot be read")
    # Two directories may share a folder: their names are not kept in full.
    if header.get("cwd") != cwd:
        raise SessionMissing(session_id, cwd)


def _object(line: bytes) -> dict[str, Any]:
    value = orjson.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # a fault of the data, not of a caller
    return value


def _continuable(entries: _Entries) -> tuple[list[Message], str | None]:
    """The messages to go on with, and the entry that they end at."""
    ids = [entry_id for entry_id in entries.path() if entry_id in entries.messages]
    stored = [entries.messages[entry_id] for entry_id in ids]
    messages = repaired(stored)
    kept = {id(message) for message in messages}
    sound = [i for i, message in zip(ids, stored, strict=True) if id(message) in kept]
    if len(sound) == len(stored):
        return messages, entries.last
    # Cut short: what follows branches off where the sound part ends.
    return messages, sound[-1] if sound else None
