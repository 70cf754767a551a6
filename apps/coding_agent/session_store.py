"""Conversations on disk: one append-only file each, which a person can read.

A line is a JSON object: first the header, then entries, each naming the one before it. What is
written is never changed, so a crash costs at most what was being written at that moment: a last
line without its end is dropped when the file is read, and cut off before the next one is added.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from coding_agent.delivered import ASYNC_FOLLOWUP, DeliveredMessage
from coding_agent.errors import SessionMissing
from coding_agent.recalled import with_block
from coding_agent.session_format import entry_line, fact_line, header_line, new_entry_id, require_id
from coding_agent.session_loading import (
    RECALLED,
    SessionInfo,
    StoredSession,
    read_cwd,
    read_infos,
    read_session,
)
from coding_agent.workspace import make_private_folder, printable
from lemon_agent import AgentMessage
from lemon_ai import AssistantMessage, Message, ToolResultMessage, UserMessage
from lemon_core.ids import new_uuid
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_FOLDER_CHARS: Final = 200
# Asking a thread costs several times what appending this little does.
MAX_INLINE_BYTES: Final = 65_536


class SessionFile:
    """The file of one conversation while a run adds to it.

    `append` only notes the entry; `flush` writes what has been noted: a little at once, for like a
    log line it only goes into the system's memory, much, and the first of a file, in a thread.
    """

    def __init__(
        self,
        path: Path,
        now_ms: Callable[[], int],
        *,
        header: bytes | None = None,
        stored: StoredSession | None = None,
    ) -> None:
        self._path = path
        self._now_ms = now_ms
        self._pending = [] if header is None else [header]
        self._must_create = header is not None
        self._leaf_id = stored.leaf_id if stored else None
        self._ids = stored.ids if stored else set()
        # By identity: equal messages are entries of their own. The message is held with its id,
        # because a number may be used again when its object is gone.
        self._entries: dict[int, tuple[AgentMessage, str]] = {}
        self._blocks: dict[int, str] = {}
        for message, entry_id in stored.entries if stored else ():
            self._entries[id(message)] = (message, entry_id)
            if stored and entry_id in stored.blocks:
                self._blocks[id(message)] = stored.blocks[entry_id]
        self._torn = stored.torn if stored else None
        self._read_size = stored.size if stored else None
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def id(self) -> str:
        """The session's id, which is also the value of its resume token."""
        return self._path.stem

    def append(self, message: AgentMessage) -> None:
        """Note a message as the next entry; those of other classes than lemon_ai's are not kept."""
        if not isinstance(message, UserMessage | AssistantMessage | ToolResultMessage):
            return
        if isinstance(message, DeliveredMessage):
            entry_id = self.add(
                "customMessage",
                customType=ASYNC_FOLLOWUP,
                content=message.text,
                display=True,
                details=message.details or None,
            )
        else:
            entry_id = new_entry_id(self._ids)
            self._note(entry_id, entry_line(entry_id, self._leaf_id, self._now_ms(), message))
        self._entries[id(message)] = (message, entry_id)
        if block := self._blocks.get(id(message)):
            self._keep_block(entry_id, block)

    def attach(self, message: UserMessage, block: str) -> None:
        """Have the model see `block` behind this message, now and whenever it is sent again.

        The message itself stays as the user wrote it.
        """
        self._blocks[id(message)] = block
        if (entry_id := self.entry_of(message)) is not None:
            self._keep_block(entry_id, block)

    def _keep_block(self, entry_id: str, block: str) -> None:
        self.add("custom", customType=RECALLED, data={"targetId": entry_id, "block": block})

    def as_sent(self, messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        """The messages with what was recalled for them."""
        if not self._blocks:
            return messages
        return [
            with_block(message, block)
            if isinstance(message, UserMessage) and (block := self._blocks.get(id(message)))
            else message
            for message in messages
        ]

    def add(self, entry_type: str, **facts: object) -> str:
        """Note an entry that is no message, such as a label; its id."""
        entry_id = new_entry_id(self._ids)
        self._note(entry_id, fact_line(entry_id, self._leaf_id, self._now_ms(), entry_type, facts))
        return entry_id

    def label(self, label: str) -> None:
        """Give the last entry a name, by which the conversation can be continued there."""
        if self._leaf_id is not None:
            self.add("label", targetId=self._leaf_id, label=label)

    def entry_of(self, message: AgentMessage) -> str | None:
        """The id of the entry that holds this very message."""
        found = self._entries.get(id(message))
        return None if found is None else found[1]

    def _note(self, entry_id: str, line: bytes) -> None:
        self._pending.append(line)
        self._ids.add(entry_id)
        self._leaf_id = entry_id

    async def is_unchanged(self) -> bool:
        """Whether nobody has added to the file since it was read."""
        try:
            status = await anyio.to_thread.run_sync(os.stat, self._path)
        except OSError:
            return False
        return status.st_size == self._read_size

    async def flush(self) -> bool:
        """Write what has been noted; False when the disk did not take it.

        It stays noted then, in its order, for the next time.
        """
        if self.flush_at_once():
            return True
        async with self._lock:
            while self._pending:
                lines, self._pending = self._pending, []
                data = b"".join(lines)
                problem: str | None = "cancelled"
                try:
                    if self._takes_long(len(data)):
                        problem = await anyio.to_thread.run_sync(self._write, data)
                    else:
                        problem = self._write(data)
                finally:
                    if problem is not None:
                        self._pending = lines + self._pending
                if problem is not None:
                    log.error("session.write_failed", path=str(self._path), reason=problem)
                    return False
        return True

    def flush_at_once(self) -> bool:
        """Write what has been noted here and now; False when that takes long, or has to wait."""
        # What a thread writes is not on disk yet.
        if self._lock.locked() or self._takes_long(sum(map(len, self._pending))):
            return False
        if self._pending and self._write(b"".join(self._pending)) is not None:
            return False
        self._pending = []
        return True

    def _takes_long(self, size: int) -> bool:
        # Making a file is work for the system, whatever its size.
        return self._must_create or size > MAX_INLINE_BYTES

    def _write(self, data: bytes) -> str | None:
        """Add `data` as a whole; what is wrong when that was not possible."""
        try:
            fd = self._open()
            try:
                self._mend(fd)
                _append(fd, data)
            finally:
                os.close(fd)
        except OSError as exc:
            return exc.strerror or type(exc).__name__
        return None

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        if not self._must_create:
            return os.open(self._path, flags)
        make_private_folder(self._path.parent)
        fd = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        self._must_create = False
        return fd

    def _mend(self, fd: int) -> None:
        """Cut off the torn line that was seen when the file was read."""
        if self._torn is not None and os.fstat(fd).st_size == self._torn.file_size:
            os.ftruncate(fd, self._torn.whole_size)
        self._torn = None


class SessionFolder:
    """The conversations of one agent, by working directory."""

    def __init__(self, agent_dir: Path, now_ms: Callable[[], int]) -> None:
        self._agent_dir = agent_dir
        self._now_ms = now_ms
        self._real_spill_dir: Path | None = None

    def new(self, cwd: str, parent_session: str | None = None) -> SessionFile:
        """A fresh conversation; its file appears with the first `flush`.

        `parent_session` is the one that a subagent works for.
        """
        session_id = new_uuid()
        header = header_line(session_id, self._now_ms(), printable(cwd), parent_session)
        return SessionFile(self._path(session_id, cwd), self._now_ms, header=header)

    async def load(
        self, session_id: str, cwd: str, at: str | None = None
    ) -> tuple[SessionFile, list[Message]]:
        """The conversation with this id, ready to be continued at its end.

        `at`, an entry's id or label, continues it there instead: what is said next becomes another
        branch, and nothing is lost. Raises `SessionMissing`, also for one of another directory,
        `SessionInvalid` or `SessionCorrupt`.
        """
        require_id(session_id)
        path = self._path(session_id, cwd)
        stored = await anyio.to_thread.run_sync(read_session, path, session_id, printable(cwd), at)
        return SessionFile(path, self._now_ms, stored=stored), stored.messages

    async def find(self, session_id: str) -> tuple[SessionFile, list[Message]]:
        """The conversation with this id, whatever directory it is of; as `load` does it."""
        require_id(session_id)

        def search() -> str | None:
            paths = (self._agent_dir / "sessions").glob(f"*/{session_id}.jsonl")
            return next(filter(None, map(read_cwd, paths)), None)

        cwd = await anyio.to_thread.run_sync(search)
        if cwd is None:
            raise SessionMissing(session_id, "any directory")
        return await self.load(session_id, cwd)

    async def infos(self, cwd: str) -> list[SessionInfo]:
        """The conversations of a directory, the last changed first; no transcript is read."""
        folder = self._path("x", cwd).parent
        return await anyio.to_thread.run_sync(read_infos, folder, printable(cwd))

    def spill_dir(self, session_id: str) -> Path:
        """Where output of this conversation goes that is too large to show; a real path."""
        if self._real_spill_dir is None:
            self._real_spill_dir = (self._agent_dir / "spill").resolve()
        return self._real_spill_dir / session_id

    def _path(self, session_id: str, cwd: str) -> Path:
        return self._agent_dir / "sessions" / folder_name(cwd) / f"{session_id}.jsonl"


def folder_name(cwd: str) -> str:
    """A directory as the name of one folder, such as `--home-me-project--`."""
    name = re.sub(r"[/\\:]+", "-", cwd.lstrip("/\\"))
    if len(os.fsencode(name)) > MAX_FOLDER_CHARS:
        digest = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]
        name = f"{printable(name)[:32]}-{digest}"
    return f"--{name or '--'}--"


def _append(fd: int, data: bytes) -> None:
    size = os.fstat(fd).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, size)  # a full disk must not leave half an entry in the middle
        raise
