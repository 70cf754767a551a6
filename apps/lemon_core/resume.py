"""Resume tokens, conversation keys and the stored chat state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

NATIVE_ENGINE = "lemon"

ConversationKey = tuple[Literal["session"], str] | tuple[Literal["resume"], str, str]
"""`("session", session_key)` or `("resume", engine, value)`; equality is by value."""

_RESUME = re.compile(r"`?\blemon\s+resume\s+([A-Za-z0-9_-]+)`?", re.IGNORECASE)


class ResumeToken(BaseModel):
    """What a later run needs to continue an earlier conversation.

    Tokens of other engines are kept as they were stored, but only native ones may resume a run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = Field(min_length=1)
    value: str = Field(min_length=1)

    def format_plain(self) -> str:
        """The command line a person would type to continue, such as `lemon resume sess_1`."""
        return f"{self.engine} resume {self.value}"

    def format(self) -> str:
        """As `format_plain`, between backticks: a chat shows it as one thing to copy."""
        return f"`{self.format_plain()}`"

    def is_native(self) -> bool:
        """True for tokens of Lemon's own executor."""
        return self.engine == NATIVE_ENGINE

    def may_resume_top_level(self) -> bool:
        """True when a top-level run may continue from this token; others stay quarantined."""
        return self.is_native()


def extract_resume(text: str) -> ResumeToken | None:
    """The first native resume command anywhere in `text`; other engines' do not count."""
    found = _RESUME.search(text)
    return ResumeToken(engine=NATIVE_ENGINE, value=found.group(1)) if found else None


def is_resume_line(line: str) -> bool:
    """True when the whole line is a native resume command and nothing else."""
    return _RESUME.fullmatch(line.strip()) is not None


def session_conversation(session_key: str) -> ConversationKey:
    """The conversation of a session that resumes nothing explicit."""
    return ("session", session_key)


def resume_conversation(token: ResumeToken) -> ConversationKey:
    """The conversation that everything resuming `token` shares."""
    return ("resume", token.engine, token.value)


def render_conversation_key(key: ConversationKey) -> str:
    """One stable string for events and storage: `session:<key>` or `resume:<engine>:<value>`."""
    return ":".join(key)


def parse_conversation_key(text: str) -> ConversationKey:
    """The inverse of `render_conversation_key`; raises ValueError."""
    kind, _, rest = text.partition(":")
    if kind == "session" and rest:
        return ("session", rest)
    engine, _, value = rest.partition(":")
    if kind == "resume" and engine and value:
        return ("resume", engine, value)
    raise ValueError(f"not a conversation key: {text!r}")


@dataclass(frozen=True, slots=True)
class ChatState:
    """What a session's next run may resume; written by the gateway, read by the router."""

    last_engine: str | None = None
    last_resume_token: str | None = None
    updated_at: int | None = None
    expires_at: int | None = None

    def native_resume(self) -> ResumeToken | None:
        """The token to resume, or None when the last engine was not Lemon's own."""
        if self.last_engine != NATIVE_ENGINE or not self.last_resume_token:
            return None
        return ResumeToken(engine=NATIVE_ENGINE, value=self.last_resume_token)
