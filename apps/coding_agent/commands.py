"""Commands of the user's own: `/name words` becomes the text of a file, filled with the words.

They are Markdown files in `command/` of the agent's folder and in `.lemon/command/` of the
project, whose files win. A project's commands say what the agent is to do in the user's name, so
they need the project's trust. A message that merely begins with a slash, such as a path, stays as
it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import anyio.to_thread

from coding_agent.errors import UntrustedCommand
from coding_agent.roles import Mention, parse_mention, roles
from lemon_core.logs import get_logger

log = get_logger(__name__)

FOLDER: Final = "command"
MAX_FILE_BYTES: Final = 65_536
MAX_FILES: Final = 200
_CALL: Final = re.compile(r"/([A-Za-z0-9][A-Za-z0-9_.-]*)(?:\s+(.*))?", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"\$(ARGUMENTS\b|[1-9][0-9]?)")
_TRUE: Final = frozenset({"true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Command:
    """A file as a command; `subtask` gives its work to a task."""

    name: str
    source: Literal["agent", "project"]
    body: str
    description: str = ""
    model: str | None = None
    subtask: bool = False
    is_usable: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run answers after its prompt was read; `model` is the command's own."""

    text: str
    model: str | None = None


class Commands:
    """One per runtime; files are read at each use, so that a change counts at once."""

    def __init__(self, agent_dir: Path, is_trusted: Callable[[Path], bool]) -> None:
        self._agent_dir, self._is_trusted = agent_dir, is_trusted

    async def asked(self, text: str, cwd: str) -> Asked:
        """What `text` asks for; itself when it calls no command and names no role.

        Raises `UntrustedCommand` for one that only a project without trust has.
        """
        if not text.startswith(("/", "@")):
            return Asked(text)
        return await anyio.to_thread.run_sync(self._asked, text, cwd)

    def all(self, cwd: str) -> dict[str, Command]:
        """The commands for work in `cwd` by name, usable or not. Blocking."""
        project = Path(cwd)
        theirs = _read(project / ".lemon" / FOLDER, "project", True)
        mine = _read(self._agent_dir / FOLDER, "agent", True)
        if theirs and not self._is_trusted(project):
            found = _read(project / ".lemon" / FOLDER, "project", False)
            return {**found, **mine}
        return {**mine, **theirs}

    def _asked(self, text: str, cwd: str) -> Asked:
        if text.startswith("@"):
            return self._mentioned(text, cwd)
        call = _CALL.fullmatch(text.strip())
        command = self.all(cwd).get(call.group(1)) if call else None
        if call is None or command is None:
            return Asked(text)
        if not command.is_usable:
            raise UntrustedCommand(command.name, cwd)
        filled = filled_in(command.body, (call.group(2) or "").strip())
        return Asked(_as_task(filled) if command.subtask else filled, command.model)

    def _mentioned(self, text: str, cwd: str) -> Asked:
        found = parse_mention(text, roles(self._agent_dir, cwd))
        if isinstance(found, Mention) and not found.prefix and found.rest:
            return Asked(_as_task(found.rest, found.name))
        return Asked(text)


def filled_in(body: str, arguments: str) -> str:
    """The text with the words in their places.

    The last number that is used takes all that is left; words for which there is no place at all
    follow the text.
    """
    words = _words(arguments)
    used = [int(found) for found in _PLACEHOLDER.findall(body) if found != "ARGUMENTS"]
    last = max(used, default=0)

    def word(found: re.Match[str]) -> str:
        if found.group(1) == "ARGUMENTS":
            return arguments
        number = int(found.group(1))
        return " ".join(words[number - 1 : None if number == last else number])

    # In one pass: what stands in the words is not read again.
    text = _PLACEHOLDER.sub(word, body)
    if arguments and not _PLACEHOLDER.search(body):
        text = f"{text}\n\n{arguments}"
    return text


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:  # a quotation mark that is no more than that
        return arguments.split()


def _as_task(text: str, role: str | None = None) -> str:
    of_role = f" with role {role}" if role else ""
    return f"Give this to a task{of_role}, wait for it (async false) and tell its result:\n\n{text}"


def _read(folder: Path, source: Literal["agent", "project"], is_usable: bool) -> dict[str, Command]:
    try:
        files = sorted(folder.glob("*.md"))[:MAX_FILES]
    except OSError:
        return {}
    found: dict[str, Command] = {}
    for file in files:
        try:
            if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
                continue
            text = file.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as exc:
            log.warning("commands.unreadable", path=str(file), reason=exc.strerror)
            continue
        facts, body = parted(text)
        found[file.stem] = Command(
            name=file.stem,
            source=source,
            body=body.strip(),
            description=facts.get("description", ""),
            model=facts.get("model") or None,
            subtask=facts.get("subtask", "").lower() in _TRUE,
            is_usable=is_usable,
        )
    return found


def parted(text: str) -> tuple[Mapping[str, str], str]:
    """The plain `key: value` lines between two `---` lines at the top, and the rest."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}, text
    for number, line in enumerate(lines[1:], start=1):
        if line.strip() == "---":
            return _facts(lines[1:number]), "\n".join(lines[number + 1 :])
    return {}, text


def _facts(lines: Sequence[str]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            facts[key.strip().lower()] = value.strip().strip("\"'")
    return facts
