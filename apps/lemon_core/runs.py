"""What a producer asks for (`RunRequest`) and what the gateway is told (`ExecutionCommand`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lemon_core import session_key as session_keys
from lemon_core.errors import LemonError
from lemon_core.execution_context import ExecutionContext
from lemon_core.resume import ConversationKey, ResumeToken, render_conversation_key
from lemon_core.tool_policy import ToolPolicy
from lemon_core.util import canonical_json

QueueMode = Literal["collect", "followup", "steer", "steer_backlog", "redirect", "interrupt"]
QUEUE_MODES: tuple[str, ...] = get_args(QueueMode)
# Also in `config.model`, which does without this module at start-up.
ThinkingLevel = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
THINKING_LEVELS: tuple[str, ...] = get_args(ThinkingLevel)
Lane = Literal["main", "subagent", "background_exec"]

DEFAULT_AGENT = "default"


class Image(BaseModel):
    """A picture that comes with a prompt; `data` is base64 text."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    data: str = Field(min_length=1)
    mime_type: str = Field(min_length=1)


def _usable_images(value: object) -> list[Image]:
    """Only items with data and type stay: a broken attachment must not refuse the message."""
    if not isinstance(value, list | tuple):
        return []
    kept: list[Image] = []
    for item in value:
        if isinstance(item, Image):
            kept.append(item)
        elif isinstance(item, Mapping):
            data, mime = item.get("data"), item.get("mime_type")
            if isinstance(data, str) and isinstance(mime, str) and data and mime:
                kept.append(Image(data=data, mime_type=mime))
    return kept


class RunRequest(BaseModel):
    """A message on its way to becoming a run; build it with `normalize` from untrusted input."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    origin: str = "unknown"
    session_key: str | None = None
    agent_id: str = DEFAULT_AGENT
    prompt: str = ""
    queue_mode: QueueMode = "collect"
    model: str | None = None
    images: tuple[Image, ...] = ()
    resume: ResumeToken | None = None
    meta: dict[str, object] = Field(default_factory=dict)
    cwd: str | None = None
    tool_policy: ToolPolicy | None = None
    execution_context: ExecutionContext | None = None
    run_id: str | None = None

    @classmethod
    def normalize(cls, value: Mapping[str, object] | RunRequest) -> RunRequest:
        """A request from loose input: gaps are filled, junk images and resumes are dropped.

        Idempotent. Raises pydantic's `ValidationError` for a wrong prompt or queue mode and
        `InvalidToolPolicy` for a malformed policy, which is never silently dropped.
        """
        if isinstance(value, RunRequest):
            return value
        raw = dict(value)
        key = raw.get("session_key") or None
        agent = raw.get("agent_id") or session_keys.agent_id(key) or DEFAULT_AGENT
        policy = raw.get("tool_policy")
        resume = raw.get("resume")
        meta = raw.get("meta")
        run_id = raw.get("run_id")
        return cls.model_validate(
            {
                "origin": raw.get("origin") or "unknown",
                "session_key": key,
                "agent_id": agent,
                "prompt": "" if raw.get("prompt") is None else raw["prompt"],
                "queue_mode": "collect" if raw.get("queue_mode") is None else raw["queue_mode"],
                "model": raw.get("model") or None,
                "images": _usable_images(raw.get("images")),
                "resume": resume if isinstance(resume, ResumeToken) else None,
                "meta": dict(meta) if isinstance(meta, Mapping) else {},
                "cwd": raw.get("cwd"),
                "tool_policy": None if policy is None else ToolPolicy.parse(policy),
                "execution_context": raw.get("execution_context"),
                "run_id": run_id if isinstance(run_id, str) and run_id else None,
            }
        )


class InvalidCommand(LemonError):
    """A command that no retry can make right; the run ends as failed."""

    code = "invalid_command"


class MissingConversationKey(InvalidCommand):
    """The router chooses the conversation; nobody may guess it later."""

    code = "missing_conversation_key"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has no conversation key: submit it through the router")
        self.run_id = run_id


class MissingContext(InvalidCommand):
    """No run without authority."""

    code = "missing_context"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has no execution context: submit it through the router")
        self.run_id = run_id


class ExecutionCommand(BaseModel):
    """One run, decided: the gateway executes it and asks nothing about queues, models or policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(min_length=1)
    session_key: str = Field(min_length=1)
    prompt: str
    conversation_key: ConversationKey | None = None
    execution_context: ExecutionContext | None = None
    images: tuple[Image, ...] = ()
    cwd: str | None = None
    resume: ResumeToken | None = None
    lane: Lane = "main"
    tool_policy: ToolPolicy | None = None
    meta: dict[str, object] = Field(default_factory=dict)

    @field_validator("images", mode="before")
    @classmethod
    def _keep_usable_images(cls, value: object) -> list[Image]:
        return _usable_images(value)

    @field_validator("meta", mode="before")
    @classmethod
    def _meta_is_a_map(cls, value: object) -> object:
        return value if isinstance(value, Mapping) else {}

    def digest(self) -> bytes:
        """SHA-256 of what the run is; two commands under one run id must agree in it.

        `meta` and the context's times are left out: a router that sends a run again after a restart
        derives them anew, and a duplicate never runs under the new ones.
        """
        key = self.conversation_key
        parts = {
            "run_id": self.run_id,
            "session_key": self.session_key,
            "conversation_key": None if key is None else render_conversation_key(key),
            "prompt": self.prompt,
            "images": [[image.mime_type, image.data] for image in self.images],
            "cwd": self.cwd,
            "resume": None if self.resume is None else self.resume.format_plain(),
            "lane": self.lane,
        }
        return hashlib.sha256(canonical_json(parts)).digest()


def require_conversation_key(command: ExecutionCommand) -> ConversationKey:
    """The conversation key of `command`; raises `MissingConversationKey`."""
    if command.conversation_key is None:
        raise MissingConversationKey(command.run_id)
    return command.conversation_key


def require_context(command: ExecutionCommand) -> ExecutionContext:
    """The execution context of `command`; raises `MissingContext`."""
    if command.execution_context is None:
        raise MissingContext(command.run_id)
    return command.execution_context
