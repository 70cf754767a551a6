"""Files that are part of the prompt: the assistant's own, and the instructions of a project.

Instructions are words, and give no power: what a run may do is its context's business. Still only
files of the user's count. Inside the workspace a link must not lead out of it, or a cloned project
could have a private file sent to a provider; above the workspace a file must belong to this user or
to root.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from coding_agent.errors import UnknownTemplate
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
_TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# A file system tells times in steps: what was written within one may change again unseen.
SETTLED_NS: Final = 50_000_000

_Seen = tuple[int, int, int, int, int]
Texts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read for one place, and every path that it depends on, as it was then."""

    home: Texts
    instructions: Texts
    looks: dict[str, _Seen | None]

    def holds(self) -> bool:
        """Whether all of them are still the same; a look at each."""
        return all(_look(path) == seen for path, seen in self.looks.items())


@dataclass(slots=True)
class _Looks:
    """What a reading has looked at so far."""

    began_ns: int = 0
    seen: dict[str, _Seen | None] = field(default_factory=dict)
    newest_ns: int = 0

    def at(self, path: str) -> _Seen | None:
        """What is at `path`, links followed; None when nothing is."""
        seen = self.seen[path] = _look(path)
        if seen is not None:
            self.newest_ns = max(self.newest_ns, seen[2], seen[3])
        return seen

    @property
    def are_settled(self) -> bool:
        """Whether a later change of any of it is sure to show."""
        return self.newest_ns + SETTLED_NS < self.began_ns


class PromptFiles:
    """One per runtime: what was read is read again when a file or a folder of it has changed."""

    def __init__(
        self,
        home_dir: Path,
        user_dirs: Sequence[Path],
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.home_dir = home_dir
        self._now_ns = now_ns
        self._user_dirs = tuple(user_dirs)
        self._texts: dict[tuple[str, bool], tuple[_Seen, str]] = {}
        self._templates = home_dir.parent / "prompts"
        self._readings: dict[tuple[SessionScope, str, tuple[str, ...]], Reading] = {}
        self._is_furnished = False

    async def read(
        self, scope: SessionScope, cwd: str, workspace: Workspace
    ) -> tuple[Texts, Texts]:
        """`home` and `instructions`, in one go.

        Nothing has changed from most runs to the next: that is seen by a look at each path, which
        costs less than asking a thread.
        """
        place = (scope, cwd, tuple(workspace.roots))
        known = self._readings.get(place)
        if known is None or not known.holds():
            known = await anyio.to_thread.run_sync(self._read, place, workspace)
        return known.home, known.instructions

    def _read(
        self, place: tuple[SessionScope, str, tuple[str, ...]], workspace: Workspace
    ) -> Reading:
        scope, cwd, roots = place
        looks = _Looks(self._now_ns())
        for root in roots:  # where a link leads decides what is inside
            looks.at(root)
        home = self._home(scope, workspace, looks)
        reading = Reading(home, self._instructions(cwd, workspace, looks), looks.seen)
        self._readings.pop(place, None)
        if looks.are_settled:
            if len(self._readings) >= MAX_CACHED:
                self._readings.clear()
            self._readings[place] = reading
        return reading

    async def home(self, scope: SessionScope, workspace: Workspace) -> Texts:
        """The assistant's files for such a session, by name; the first call makes missing ones."""
        return await anyio.to_thread.run_sync(self._home, scope, workspace, _Looks())

    async def instructions(self, cwd: str, workspace: Workspace) -> Texts:
        """The instructions for work in `cwd`, the nearest first; the real path names each once."""
        return await anyio.to_thread.run_sync(self._instructions, cwd, workspace, _Looks())

    async def template(self, name: str, cwd: str, workspace: Workspace) -> str:
        """The text of a prompt template of the project's, or else of the user's.

        Raises `UnknownTemplate`.
        """
        found = await anyio.to_thread.run_sync(self._template, name, cwd, workspace)
        if found is None:
            places = (*self._template_folders(cwd), str(self._templates))
            raise UnknownTemplate(name, places)
        return found

    def _template_folders(self, cwd: str) -> tuple[str, ...]:
        return tuple(f"{cwd}/{folder}/prompts" for folder in (".lemon", ".claude"))

    def _template(self, name: str, cwd: str, workspace: Workspace) -> str | None:
        if _TEMPLATE_NAME.fullmatch(name) is None:
            return None
        for folder in (*self._template_folders(cwd), str(self._templates)):
            for ending in (".md", ".txt", ""):
                real = os.path.realpath(f"{folder}/{name}{ending}")
                is_theirs = folder != str(self._templates)
                # A link of a cloned project must not send a private file to a provider.
                if is_theirs and not in_workspace(real, workspace):
                    continue
                text = self._text(real, _Looks(), os.O_NOFOLLOW)
                if text is not None and text.strip():
                    return text.strip()
        return None

    # -- the assistant's files -----------------------------------------------------------------

    def _home(self, scope: SessionScope, workspace: Workspace, looks: _Looks) -> Texts:
        self._furnish()
        looks.at(str(self.home_dir))
        names: tuple[str, ...] = SUBAGENT_FILES
        if scope == "main":
            may_work = in_workspace(os.path.realpath(self.home_dir), workspace)
            names = (*MAIN_FILES, *(HOME_WORK_FILES if may_work else ()))
        found: Texts = []
        for name in names:
            path = self.home_dir / name
            text = self._text(str(path), looks)
            # Deleting it is how the first conversation ends.
            if text is None and name != "BOOTSTRAP.md":
                text = f"[MISSING] Expected at: {path}"
            if text and text.strip():
                found.append((name, text.strip()))
        memory = self._text(str(self.home_dir / MEMORY_FILE), looks) if scope == "main" else None
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

    def _instructions(self, cwd: str, workspace: Workspace, looks: _Looks) -> Texts:
        found: dict[str, str] = {}
        room = MAX_TOTAL_CHARS
        for path in self._candidates(cwd, looks):
            # Most are not there, which their folder tells of; resolving costs a look at each part.
            if not os.path.lexists(path) or looks.at(path) is None:
                continue
            if (real := os.path.realpath(path)) in found:
                continue
            is_inside = in_workspace(os.path.dirname(path), workspace)
            if is_inside and not in_workspace(real, workspace):
                log.warning("instructions.link_leads_out", path=printable(path))
                continue
            text = self._text(real, looks, os.O_NOFOLLOW, of_user=not is_inside)
            if text is None or not text.strip():
                continue
            if len(text) > room:
                log.warning("instructions.too_much", path=printable(path), chars=len(text))
                continue
            room -= len(text)
            found[real] = text.strip()
        return [(printable(path), text) for path, text in found.items()]

    def _candidates(self, cwd: str, looks: _Looks) -> Iterator[str]:
        folder, above = cwd, os.path.dirname(cwd)
        while True:
            looks.at(folder)
            for below in INSTRUCTION_FOLDERS:
                inner = f"{folder.rstrip('/')}/{below}" if below else folder.rstrip("/")
                # Mostly the folder is not there, and then neither are its files.
                if not below or (os.path.lexists(inner) and looks.at(inner) is not None):
                    yield from (f"{inner}/{name}" for name in INSTRUCTION_NAMES)
            if above == folder:
                break
            folder, above = above, os.path.dirname(above)
        for user_dir in self._user_dirs:
            looks.at(str(user_dir))
            yield from (f"{user_dir}/{name}" for name in INSTRUCTION_NAMES)

    # -- files ---------------------------------------------------------------------------------

    def _text(
        self, path: str, looks: _Looks, flags: int = 0, *, of_user: bool = False
    ) -> str | None:
        """The text of a file, shortened; None when it is no file that may be used."""
        # What may be used of somebody else's differs by place, so it is kept apart.
        known = self._texts.get((path, of_user))
        seen = looks.at(path)
        try:
            if known is not None and known[0] == seen:
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


def _look(path: str) -> _Seen | None:
    try:
        return _seen(os.stat(path))
    except OSError:
        return None


def _seen(status: os.stat_result) -> _Seen:
    facts = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return (*facts, status.st_size)
