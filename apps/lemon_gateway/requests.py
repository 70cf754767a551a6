"""What the executor receives (`ExecutionRequest`) and the messages it sends back.

Every message carries the `run_ref` of the handle that `start_run` returned; messages with another
reference are ignored. Nothing here is numbered: sequence numbers are the run's business.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from lemon_core.events import Action, ActionKind, ActionPhase, ErrorValue
from lemon_core.execution_context import ExecutionContext
from lemon_core.resume import NATIVE_ENGINE, ConversationKey, ResumeToken
from lemon_core.runs import (
    ExecutionCommand,
    Image,
    Lane,
    require_context,
    require_conversation_key,
)
from lemon_core.tool_policy import ToolPolicy

__all__ = [
    "Action",
    "ActionKind",
    "ActionPhase",
    "EngineAction",
    "EngineCompleted",
    "EngineDelta",
    "EngineEvent",
    "EngineStarted",
    "ExecutionRequest",
    "SinkMessage",
]


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One run as the gateway schedules it and as the executor receives it.

    It names no engine and no queue mode: one executor runs everything, and the router has decided
    the order. `meta` belongs to the request alone and may be read freely.
    """

    run_id: str
    session_key: str
    prompt: str
    conversation_key: ConversationKey
    execution_context: ExecutionContext
    images: tuple[Image, ...] = ()
    cwd: str | None = None
    resume: ResumeToken | None = None
    lane: Lane = "main"
    tool_policy: ToolPolicy | None = None
    meta: dict[str, object] = field(default_factory=dict)

    @classmethod
    def from_command(cls, command: ExecutionCommand) -> ExecutionRequest:
        """The request for `command`.

        Raises `MissingConversationKey` and `MissingContext`: neither may be guessed here.
        """
        return cls(
            run_id=command.run_id,
            session_key=command.session_key,
            prompt=command.prompt,
            conversation_key=require_conversation_key(command),
            execution_context=require_context(command),
            images=command.images,
            cwd=command.cwd,
            resume=command.resume,
            lane=command.lane,
            tool_policy=command.tool_policy,
            # The submitter may go on using its own map.
            meta=copy.deepcopy(command.meta) if command.meta else {},
        )

    def to_command(self) -> ExecutionCommand:
        """The command this request came from, equal in every field."""
        return ExecutionCommand(
            run_id=self.run_id,
            session_key=self.session_key,
            prompt=self.prompt,
            conversation_key=self.conversation_key,
            execution_context=self.execution_context,
            images=self.images,
            cwd=self.cwd,
            resume=self.resume,
            lane=self.lane,
            tool_policy=self.tool_policy,
            meta=copy.deepcopy(self.meta),
        )

    def meta_text(self, key: str) -> str | None:
        """The text under `key` of `meta`; None when it is absent, blank or not text."""
        value = self.meta.get(key)
        return value if isinstance(value, str) and value.strip() else None


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The session is open; `resume` continues it in a later run. Sent once, first."""

    run_ref: str
    resume: ResumeToken | None = None
    title: str | None = None
    meta: dict[str, object] | None = None
    engine: str = NATIVE_ENGINE


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """A piece of visible answer text; empty text is ignored."""

    run_ref: str
    text: str


@dataclass(frozen=True, slots=True)
class EngineAction:
    """A step of a tool or of thinking. `ok=False` means failed, None means not known (yet)."""

    run_ref: str
    action: Action
    phase: ActionPhase = "updated"
    ok: bool | None = None
    message: str | None = None
    level: str | None = None
    engine: str = NATIVE_ENGINE


@dataclass(frozen=True, slots=True)
class EngineCompleted:
    """The end of the run as the executor saw it; exactly one per run, last.

    An absent or empty `answer` is replaced by the joined deltas.
    """

    run_ref: str
    ok: bool
    answer: str | None = None
    error: ErrorValue = None
    resume: ResumeToken | None = None
    usage: dict[str, object] | None = None
    meta: dict[str, object] | None = None
    engine: str = NATIVE_ENGINE


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Anything else worth telling subscribers, as a plain JSON map."""

    run_ref: str
    payload: Mapping[str, object]


SinkMessage = EngineStarted | EngineDelta | EngineAction | EngineCompleted | EngineEvent
