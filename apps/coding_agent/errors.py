"""Why a run cannot start: each is the error of its completion, told by code and one line."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lemon_core.errors import LemonError


class CodingAgentError(LemonError):
    """Base of the errors of this app; `code` is the completion's."""

    code: ClassVar[str] = "coding_agent_error"


class EmptyPrompt(CodingAgentError):
    """There is nothing to answer."""

    code = "empty_prompt"

    def __init__(self) -> None:
        super().__init__("the prompt is empty: say what is to be done")


class NoWorkingDirectory(CodingAgentError):
    """The directory a run is to work in is not there."""

    code = "no_working_directory"

    def __init__(self, cwd: str) -> None:
        super().__init__(f"working directory {cwd} is not a directory: create it or name another")
        self.cwd = cwd


class OutsideWorkspace(CodingAgentError):
    """The directory a run is to work in is not one that it may enter."""

    code = "workspace_escape"

    def __init__(self, cwd: str, roots: tuple[str, ...]) -> None:
        super().__init__(f"working directory {cwd} is outside the workspace ({', '.join(roots)})")
        self.cwd, self.roots = cwd, roots


class ResumeError(CodingAgentError):
    """A conversation cannot be continued; `reason` is the last word of the code."""

    reason: ClassVar[str]

    def __init__(self, session_id: str, message: str) -> None:
        super().__init__(message)
        self.session_id = session_id


class SessionMissing(ResumeError):
    """There is no such session in this working directory."""

    code, reason = "resume_session_missing", "missing"

    def __init__(self, session_id: str, cwd: str) -> None:
        super().__init__(session_id, f"there is no session {session_id} in {cwd}: start a new one")


class SessionInvalid(ResumeError):
    """The token, or the file it names, is not one of a session that can be read."""

    code, reason = "resume_session_invalid", "invalid"

    def __init__(self, session_id: str, problem: str) -> None:
        super().__init__(session_id, f"session {session_id} cannot be continued: {problem}")


class SessionCorrupt(ResumeError):
    """A line that was written whole cannot be understood; nothing of the file is changed."""

    code, reason = "resume_session_corrupt", "corrupt"

    def __init__(self, session_id: str, path: Path, line: int, problem: str) -> None:
        super().__init__(
            session_id,
            f"session file {path}, line {line}: {problem}; mend or move the file, "
            "or start a new session",
        )
        self.path, self.line = path, line


class UntrustedCommand(CodingAgentError):
    """A command was called that only a project without trust has."""

    code = "untrusted_command"

    def __init__(self, name: str, cwd: str) -> None:
        super().__init__(
            f"/{name} is a command of the project in {cwd}, which is not trusted: read "
            f".lemon/command/{name}.md, then: lemon config trust {cwd}"
        )
        self.name, self.cwd = name, cwd


class UnknownTemplate(CodingAgentError):
    """A prompt template was asked for that there is not."""

    code = "unknown_prompt_template"

    def __init__(self, name: str, places: tuple[str, ...]) -> None:
        super().__init__(f"there is no prompt template {name!r} in {', '.join(places)}")
        self.name, self.places = name, places
