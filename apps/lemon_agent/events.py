"""The events of a run.

Order: `agent_start, tool_schema_snapshot, turn_start, loop_state_transition(initializing)`, a
`message_start`/`message_end` pair for every message, and exactly one terminal event at the end:
`agent_end`, `error` or `canceled`. Plain slotted classes: one is made for every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lemon_agent.schema_snapshot import ToolSchemaSnapshot
from lemon_agent.states import LoopState
from lemon_agent.types import AgentMessage, AgentToolResult
from lemon_ai import AssistantMessage, ToolResultMessage
from lemon_ai.events import BlockEvent

BudgetReason = Literal[
    "max_tool_turns_exhausted",
    "max_tokens_exhausted",
    "max_cost_usd_exhausted",
    "max_tool_calls_exhausted",
]


@dataclass(frozen=True, slots=True)
class AgentStart:
    type: ClassVar[Literal["agent_start"]] = "agent_start"


@dataclass(frozen=True, slots=True)
class SchemaSnapshotTaken:
    """The schemas shown to the model, and the code behind them, are fixed for this run."""

    type: ClassVar[Literal["tool_schema_snapshot"]] = "tool_schema_snapshot"
    snapshot: ToolSchemaSnapshot


@dataclass(frozen=True, slots=True)
class LoopStateTransition:
    type: ClassVar[Literal["loop_state_transition"]] = "loop_state_transition"
    origin: LoopState | None
    target: LoopState


@dataclass(frozen=True, slots=True)
class TurnStart:
    type: ClassVar[Literal["turn_start"]] = "turn_start"


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """One model call and the tools it asked for are done."""

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    message: AssistantMessage
    tool_results: Sequence[ToolResultMessage] = ()


@dataclass(frozen=True, slots=True)
class MessageStart:
    """A message begins; an assistant message is still without content here."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class MessageUpdate:
    """The assistant message grew; `assistant_event` says how and is all that most readers need."""

    type: ClassVar[Literal["message_update"]] = "message_update"
    assistant_event: BlockEvent

    @property
    def message(self) -> AssistantMessage:
        """The message so far. Made on demand: its cost grows with the message."""
        return self.assistant_event.snapshot()


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The message is final and belongs to the history."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class ToolExecutionStart:
    """`args` as the model gave them."""

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"
    id: str
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolExecutionUpdate:
    type: ClassVar[Literal["tool_execution_update"]] = "tool_execution_update"
    id: str
    name: str
    args: Mapping[str, Any]
    partial_result: AgentToolResult


@dataclass(frozen=True, slots=True)
class ToolExecutionEnd:
    """In the order in which calls end; their result messages come in the order of the calls."""

    type: ClassVar[Literal["tool_execution_end"]] = "tool_execution_end"
    id: str
    name: str
    result: AgentToolResult
    is_error: bool


@dataclass(frozen=True, slots=True)
class LoopBudgetExhausted:
    """A limit is spent; a notice message and `agent_end` follow. `used` may lie above `limit`."""

    type: ClassVar[Literal["loop_budget_exhausted"]] = "loop_budget_exhausted"
    reason: BudgetReason
    limit: float
    used: float


@dataclass(frozen=True, slots=True)
class ModelSwitched:
    """Another model answers than before in this run: one stood in for the other, or it is back.

    Both are `provider:id`. It comes between an answer and its end, once for each change.
    """

    type: ClassVar[Literal["model_switched"]] = "model_switched"
    asked: str
    answered: str

    @property
    def notice(self) -> str:
        """One line for a person."""
        if self.asked == self.answered:
            return f"{self.answered} answers again"
        return f"{self.asked} did not answer: this is from {self.answered}"


@dataclass(frozen=True, slots=True)
class Compacted:
    """Everything before `first_kept` is now `summary`; sizes are estimated tokens.

    The history that an owner keeps follows: it is what the next run starts from.
    """

    type: ClassVar[Literal["compaction"]] = "compaction"
    tokens_before: int
    tokens_after: int
    removed_messages: int
    forced: bool
    summary: AgentMessage
    first_kept: AgentMessage


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """Terminal: the run ended by itself. `messages` are those of this run only."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"
    messages: Sequence[AgentMessage]


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Terminal: the run ended in an error.

    `reason` is `assistant_error`, `invalid_tool_transcript`, `context_too_large`, `loop_detected`
    or `loop_crashed`; `detail` is one line for people; `messages` are those of this run as far as
    it came.
    """

    type: ClassVar[Literal["error"]] = "error"
    reason: str
    detail: str
    messages: Sequence[AgentMessage] = field(default=())


@dataclass(frozen=True, slots=True)
class RunCanceled:
    """Terminal: aborted (`assistant_aborted`), or its task was cancelled (`task_cancelled`)."""

    type: ClassVar[Literal["canceled"]] = "canceled"
    reason: str
    messages: Sequence[AgentMessage] = field(default=())


TerminalEvent = AgentEnd | RunFailed | RunCanceled

AgentEvent = (
    AgentStart
    | SchemaSnapshotTaken
    | LoopStateTransition
    | TurnStart
    | TurnEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolExecutionStart
    | ToolExecutionUpdate
    | ToolExecutionEnd
    | LoopBudgetExhausted
    | ModelSwitched
    | Compacted
    | TerminalEvent
)
