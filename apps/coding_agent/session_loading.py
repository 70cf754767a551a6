"""Reading a session file; it blocks, so a worker thread calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from coding_agent.delivered import ASYNC_FOLLOWUP, DeliveredMessage
from coding_agent.errors import SessionCorrupt, SessionInvalid, SessionMissing
from coding_agent.session_format import SESSION_ID, VERSION, parse_message
from coding_agent.session_migration import OLD_VERSIONS, Unmigratable, migrate, version_of
from coding_agent.transcript import repaired
from lemon_agent import SummaryMessage
from lemon_ai import Message, UserMessage

MAX_HEADER_BYTES: Final = 16_384
RECALLED: Final = "recalled_context"


@dataclass(frozen=True, slots=True)
class Torn:
    """The file's size, and its size without the line whose end is missing."""

    file_size: int
    whole_size: int


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A conversation as it can be continued.

    `messages` are what the model is shown of the path to the last entry, repaired; `entries` are
    those of them that have an entry, with its id; `blocks` is what was recalled for an entry.
    `leaf_id` is the entry that the next one follows, None when there is none.
    """

    messages: list[Message]
    entries: Sequence[tuple[Message, str]]
    blocks: Mapping[str, str]
    leaf_id: str | None
    ids: set[str]
    torn: Torn | None
    size: int


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A conversation in a list; times are milliseconds since the epoch."""

    id: str
    cwd: str
    started_at_ms: int
    changed_at_ms: int
    size_bytes: int
    parent_session: str | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A compaction: `summary` stands for everything before `first_kept`."""

    summary: str
    first_kept: str
    timestamp: int


@dataclass(slots=True)
class _Entries:
    """The entries so far. Each names an earlier one, so the last has no children."""

    parents: dict[str, str | None] = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    cuts: dict[str, _Cut] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    last: str | None = None

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry; raises ValueError with what is wrong with it."""
        entry_id, parent_id = entry.get("id"), entry.get("parentId")
        if not isinstance(entry_id, str) or entry_id in self.parents:
            raise ValueError(f"id {entry_id!r} is missing or used before")
        if parent_id is not None and parent_id not in self.parents:
            raise ValueError(f"parentId {parent_id!r} names no earlier entry")
        self.parents[entry_id] = parent_id
        self._take(entry_id, entry)
        self.last = entry_id

    def _take(self, entry_id: str, entry: dict[str, Any]) -> None:
        match entry.get("type"):
            case "message":
                self.messages[entry_id] = parse_message(entry.get("message"))
            case "customMessage" if entry.get("customType") == ASYNC_FOLLOWUP:
                details = entry.get("details")
                self.messages[entry_id] = DeliveredMessage.of(
                    _text(entry, "content"),
                    details if isinstance(details, dict) else {},
                    _time(entry),
                )
            case "branchSummary":
                text = f"<branch_summary>\n{_text(entry, 'summary')}\n</branch_summary>"
                self.messages[entry_id] = UserMessage(content=text, timestamp=_time(entry))
            case "compaction":
                cut = _Cut(_text(entry, "summary"), _text(entry, "firstKeptEntryId"), _time(entry))
                if cut.first_kept not in self.path(entry_id):
                    raise ValueError(f"firstKeptEntryId {cut.first_kept!r} is not on its path")
                self.cuts[entry_id] = cut
            case "label":
                self._label(entry.get("targetId"), entry.get("label"))
            case "custom" if entry.get("customType") == RECALLED:
                match entry.get("data"):
                    case {"targetId": str(target), "block": str(block)}:
                        self.blocks[target] = block
            case _:
                pass  # entries of other types stay where they are, and the model never sees them

    def _label(self, target: object, label: object) -> None:
        self.labels = {name: at for name, at in self.labels.items() if at != target}
        if isinstance(target, str) and isinstance(label, str) and label:
            self.labels[label] = target

    def path(self, end: str | None) -> list[str]:
        """The ids from the first entry to `end`."""
        ids: list[str] = []
        while end is not None:
            ids.append(end)
            end = self.parents[end]
        return ids[::-1]


def read_session(path: Path, session_id: str, cwd: str, at: str | None = None) -> StoredSession:
    """The session of `cwd` in `path`, up to the entry `at` (an id or a label) when it is given.

    Raises the three `ResumeError`s.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise SessionMissing(session_id, cwd) from exc
    except OSError as exc:
        raise SessionInvalid(session_id, f"{path}: {exc.strerror}") from exc
    lines = data.split(b"\n")
    torn_size = len(lines.pop())
    version = _check_header(lines[0] if lines else b"", session_id, cwd)
    if version != VERSION:
        lines = _migrated(path, session_id, lines, version)
        data, torn_size = b"".join(line + b"\n" for line in lines), 0
    entries = _Entries()
    for number, line in enumerate(lines[1:], 2):
        try:
            entries.add(_object(line))
        except ValueError as exc:
            problem = str(exc).split("\n", 1)[0]
            raise SessionCorrupt(session_id, path, number, problem) from exc
    end = entries.last
    if at is not None:
        end = entries.labels.get(at, at)
        if end not in entries.parents:
            raise SessionInvalid(session_id, f"it has no entry and no label {at}")
    torn = Torn(len(data), len(data) - torn_size) if torn_size else None
    messages, known, leaf_id = _continuable(entries, end)
    return StoredSession(
        messages, known, entries.blocks, leaf_id, set(entries.parents), torn, len(data)
    )


def read_cwd(path: Path) -> str | None:
    """The working directory that the header of a session file names."""
    info = _info(path)
    return None if info is None else info.cwd


def read_infos(folder: Path, cwd: str) -> list[SessionInfo]:
    """The sessions of `cwd` in `folder`, the last changed first; only headers are read.

    What is no session file is passed over.
    """
    infos = [_info(path) for path in folder.glob("*.jsonl")] if folder.is_dir() else []
    # Two directories may share a folder: their names are not kept in full.
    found = [info for info in infos if info is not None and info.cwd == cwd]
    return sorted(found, key=lambda info: (info.changed_at_ms, info.id), reverse=True)


def _info(path: Path) -> SessionInfo | None:
    try:
        with path.open("rb") as file:
            header = _object(file.readline(MAX_HEADER_BYTES))
        status = path.stat()
    except (OSError, ValueError):
        return None
    cwd, started, parent = header.get("cwd"), header.get("timestamp"), header.get("parentSession")
    if header.get("type") != "session" or header.get("id") != path.stem:
        return None
    if not isinstance(cwd, str) or not isinstance(started, int):
        return None
    changed = status.st_mtime_ns // 1_000_000
    above = parent if isinstance(parent, str) and SESSION_ID.fullmatch(parent) else None
    return SessionInfo(path.stem, cwd, started, changed, status.st_size, above)


def _migrated(path: Path, session_id: str, lines: list[bytes], version: int) -> list[bytes]:
    try:
        return migrate(path, lines, version)
    except Unmigratable as exc:
        raise SessionCorrupt(session_id, path, exc.number, str(exc)) from exc
    except OSError as exc:
        raise SessionInvalid(session_id, f"{path}: {exc.strerror}") from exc


def _check_header(line: bytes, session_id: str, cwd: str) -> int:
    """The version of the file; raises `SessionInvalid` and `SessionMissing`."""
    try:
        header = _object(line)
    except ValueError as exc:
        raise SessionInvalid(session_id, "its file does not begin with a header") from exc
    if header.get("type") != "session" or header.get("id") != session_id:
        raise SessionInvalid(session_id, "its file has the header of something else")
    version = version_of(header)
    if not isinstance(version, int) or version not in (*OLD_VERSIONS, VERSION):
        raise SessionInvalid(session_id, f"version {version} cannot be read")
    # Two directories may share a folder: their names are not kept in full.
    if header.get("cwd") != cwd:
        raise SessionMissing(session_id, cwd)
    return version


def _object(line: bytes) -> dict[str, Any]:
    value = orjson.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # a fault of the data, not of a caller
    return value


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is missing or no text")  # a fault of the data, not of a caller
    return value


def _time(entry: dict[str, Any]) -> int:
    value = entry.get("timestamp")
    return value if isinstance(value, int) else 0


def _continuable(
    entries: _Entries, end: str | None
) -> tuple[list[Message], list[tuple[Message, str]], str | None]:
    """The messages to go on with, those that have an entry, and the entry that they end at."""
    path = entries.path(end)
    cut_id = next((entry_id for entry_id in reversed(path) if entry_id in entries.cuts), None)
    shown = _shown_ids(entries, path, cut_id)
    known = [(entries.messages[entry_id], entry_id) for entry_id in shown]
    summary: list[Message] = []
    if cut_id is not None:
        cut = entries.cuts[cut_id]
        summary = [SummaryMessage(content=cut.summary, timestamp=cut.timestamp)]
    messages = repaired([*summary, *(message for message, _ in known)])
    kept = {id(message) for message in messages}
    sound = [pair for pair in known if id(pair[0]) in kept]
    if cut_id is not None:
        messages[0] = SummaryMessage(
            content=entries.cuts[cut_id].summary,
            timestamp=entries.cuts[cut_id].timestamp,
            kept=_older(messages, sound, path.index(cut_id), path),
        )
    if len(sound) == len(known):
        return messages, sound, end
    # Cut short: what follows branches off where the sound part ends.
    return messages, sound, sound[-1][1] if sound else None


def _shown_ids(entries: _Entries, path: Sequence[str], cut_id: str | None) -> list[str]:
    """The entries on the path that the model is shown: from a compaction on only what it left."""
    held = [entry_id for entry_id in path if entry_id in entries.messages]
    if cut_id is None:
        return held
    first = path.index(entries.cuts[cut_id].first_kept)
    before = set(path[:first])
    # A result that was delivered is not repeated by anybody: it outlasts the summary.
    return [
        entry_id
        for entry_id in held
        if entry_id not in before or isinstance(entries.messages[entry_id], DeliveredMessage)
    ]


def _older(
    messages: Sequence[Message],
    sound: Sequence[tuple[Message, str]],
    cut_index: int,
    path: Sequence[str],
) -> int:
    """How many of the messages behind the summary are older than it."""
    place = {entry_id: index for index, entry_id in enumerate(path)}
    newer = {id(message) for message, entry_id in sound if place[entry_id] > cut_index}
    for index, message in enumerate(messages):
        if id(message) in newer:
            return index - 1
    return len(messages) - 1
