"""Files that are part of the prompt: the assistant's own, and the instructions of a project.

Instructions are words, and give no power: what a run may do is its context's business. Still only
files of the user's count. Inside the workspace a link must not lead out of it, or a cloned project
could have a private file sent to a provider; above the workspace a file must belong to this user or
to root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from coding_agent.workspace import in_workspace, printable
from lemon_agent.tool_registry import SessionScope
from lemon_agent.workspace.home import ensure_workspace
from lemon_core.execution_context import Workspace
from lemon_core.logs import get_logger

log = get_logger(__name__)

INSTRUCTION_NAMES: Final = ("CLAUDE.md", "AGENTS.md")
INSTRUCTION_FOLDERS: Final = ("", ".claude", ".lemon")
MAIN_FILES: Final = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md")
# They ask for changes in the home, so they are for runs that may make them.
HOME_WORK_FILES: Final = ("HEARTBEAT.md", "BOOTSTRAP.md")
SUBAGENT_FILES: Final = ("AGENTS.md", "TOOLS.md")
MEMORY_FILE: Final = "MEMORY.md"
MAX_CHARS: Final = 20_000
MAX_TOTAL_CHARS: Final = 60_000
MAX_FILE_BYTES: Final = 1_048_576
MAX_CACHED: Final = 256

_Seen = tuple[int, int, int, int]


class PromptFiles:
    """One per runtime: a file is read again when it has changed."""

    def __init__(self, home_dir: Path, user_dirs: Sequence[Path]) -> None:
        self.home_dir = home_dir
        self._user_dirs = tuple(user_dirs)
        self._texts: dict[tuple[str, bool], tuple[_Seen, str]] = {}
        self._is_furnished = False

    async def read(
        self, scope: SessionScope, cwd: str, workspace: Workspace
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """`home` and `instructions`, in one go."""

        def both() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
            return self._home(scope, workspace), self._instructions(cwd, workspace)

        return await anyio.to_thread.run_sync(both)

    async def home(self, scope: SessionScope, workspace: Workspace) -> list[tuple[str, str]]:
        """The assistant's files for such a session, by name; the first call makes missing ones."""
        return await anyio.to_thread.run_sync(self._home, scope, workspace)

    async def instructions(self, cwd: str, workspace: Workspace) -> list[tuple[str, str]]:
        """The instructions for work in `cwd`, the nearest first; the real path names each once."""
        return await anyio.to_thread.run_sync(self._instructions, cwd, workspace)

    # -- the assistant's files -----------------------------------------------------------------

    def _home(self, scope: SessionScope, workspace: Workspace) -> list[tuple[str, str]]:
        self._furnish()
        names: tuple[str, ...] = SUBAGENT_FILES
        if scope == "main":
            may_work = in_workspace(os.path.realpath(self.home_dir), workspace)
            names = (*MAIN_FILES, *(HOME_WORK_FILES if may_work else ()))
        found: list[tuple[str, str]] = []
        for name in names:
            path = self.home_dir / name
            text = self._text(str(path))
            # Deleting it is how the first conversation ends.
            if text is None and name != "BOOTSTRAP.md":
                text = f"[MISSING] Expected at: {path}"
            if text and text.strip():
                found.append((name, text.strip()))
        memory = self._text(str(self.home_dir / MEMORY_FILE)) if scope == "main" else None
        return [*found, (MEMORY_FILE, memory.strip())] if memory and memory.strip() else found

    def _furnish(self) -> None:
        if self._is_furnished:
            return
        self._is_furnished = True
        try:
            ensure_workspace(self.home_dir)
        except OSError as exc:
            log.warning("home.not_furnished", path=str(self.home_dir), reason=exc.strerror)

    # -- instructions --------------------------------------------------------------------------

    def _instructions(self, cwd: str, workspace: Workspace) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        room = MAX_TOTAL_CHARS
        for path in self._candidates(cwd):
            # Most are not there, and resolving a path costs a look at each of its folders.
            if not os.path.exists(path) or (real := os.path.realpath(path)) in found:
                continue
            is_inside = in_workspace(os.path.dirname(path), workspace)
            if is_inside and not in_workspace(real, workspace):
                log.warning("instructions.link_leads_out", path=printable(path))
                continue
            text = self._text(real, os.O_NOFOLLOW, of_user=not is_inside)
            if text is None or not text.strip():
                continue
            if len(text) > room:
                log.warning("instructions.too_much", path=printable(path), chars=len(text))
                continue
            room -= len(text)
            found[real] = text.strip()
        return [(printable(path), text) for path, text in found.items()]

    def _candidates(self, cwd: str) -> Iterator[str]:
        folder, above = cwd, os.path.dirname(cwd)
        while True:
            for below in INSTRUCTION_FOLDERS:
                inner = f"{folder.rstrip('/')}/{below}" if below else folder.rstrip("/")
                # Mostly the folder is not there, and then neither are its files.
                if not below or os.path.isdir(inner):
                    yield from (f"{inner}/{name}" for name in INSTRUCTION_NAMES)
            if above == folder:
                break
            folder, above = above, os.path.dirname(above)
        for user_dir in self._user_dirs:
            yield from (f"{user_dir}/{name}" for name in INSTRUCTION_NAMES)

    # -- files ---------------------------------------------------------------------------------

    def _text(self, path: str, flags: int = 0, *, of_user: bool = False) -> str | None:
        """The text of a file, shortened; None when it is no file that may be used."""
        # What may be used of somebody else's differs by place, so it is kept apart.
        known = self._texts.get((path, of_user))
        try:
            if known is not None and known[0] == _seen(os.stat(path)):
                return known[1]
            # A pipe in the place of a file must not hold the run.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                return None
            if of_user and status.st_uid not in (os.geteuid(), 0):
                return None
            with open(fd, "rb", closefd=False) as file:
                text = shortened(file.read().decode(errors="replace"))
        except OSError:
            return None
        finally:
            os.close(fd)
        if len(self._texts) >= MAX_CACHED:
            self._texts.clear()
        self._texts[path, of_user] = (_seen(status), text)
        return text


def shortened(text: str) -> str:
    """The text; of one that is too long the beginning and the end (70 and 20 % of the limit)."""
    if len(text) <= MAX_CHARS:
        return text
    head, tail = MAX_CHARS * 7 // 10, MAX_CHARS // 5
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[-tail:]}"


def _seen(status: os.stat_result) -> _Seen:
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
