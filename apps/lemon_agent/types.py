"""Tools, context and configuration of the agent loop.

Messages are lemon_ai's. An application may keep messages of its own classes in the history as well
(anything with a `role`): only `user`, `assistant` and `tool_result` reach a model, unless
`LoopConfig.convert_to_llm` says otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lemon_agent.signal import AbortSignal
from lemon_ai import (
    AssistantMessage,
    Context,
    EventStream,
    ImageContent,
    Message,
    Model,
    StreamOptions,
    TextContent,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.types import Trust

if TYPE_CHECKING:
    from lemon_agent.compaction import Compaction
    from lemon_agent.events import AgentEvent
    from lemon_agent.schema_snapshot import ToolSchemaSnapshot
    from lemon_core.execution_context import ExecutionContext

# -- messages --------------------------------------------------------------------------------


class AgentMessage(Protocol):
    """Any message of a history; lemon_ai's three classes are."""

    @property
    def role(self) -> str: ...


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that waits for its turn.

    A non-empty `system_prompt` replaces the running one from the model call that consumes it.
    """

    message: AgentMessage
    system_prompt: str | None = None


# -- tools -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentToolResult:
    """What a tool gives back.

    The model reads `content`; `details` is for user interfaces and logs. `trust` is `untrusted`
    for text that came from outside, and nothing else is.
    """

    content: Sequence[TextContent | ImageContent] = ()
    details: object = None
    trust: Trust = "trusted"
    is_error: bool = False

    @classmethod
    def of_text(
        cls,
        text: str,
        *,
        details: object = None,
        trust: Trust = "trusted",
        is_error: bool = False,
    ) -> AgentToolResult:
        """A result of one text block."""
        return cls((TextContent(text=text),), details, trust, is_error)

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """One call of a tool.

    `params` fit the tool's schema but are still the model's words. `on_update` reports progress
    (a partial result) without waiting; after the call has ended it does nothing.
    """

    tool_call_id: str
    params: dict[str, Any]
    signal: AbortSignal
    on_update: Callable[[AgentToolResult], None]
    cwd: str | None = None
    run: ExecutionContext | None = None


ToolExecute = Callable[[ToolCallContext], Awaitable[AgentToolResult]]


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool the model may call.

    `execute` raises `ToolError` to fail with a text for the model; whatever else it raises is an
    error result too. It is cancelled on abort and when its time is up. The calls of one turn run
    side by side; an `exclusive` tool's call waits for those before it, and those after it wait.
    `label` is for people and never sent to a model.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    execute: ToolExecute
    label: str = ""
    exclusive: bool = False

    def executing(self, execute: ToolExecute) -> AgentTool:
        """The same tool to the model, with another body."""
        # Not `dataclasses.replace`, which costs several times as much: every run wraps its tools.
        return AgentTool(
            self.name, self.description, self.parameters, execute, self.label, self.exclusive
        )


# -- context and configuration ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Where a run starts from: the history is oldest first, and copied when the run begins."""

    system_prompt: str = ""
    messages: Sequence[AgentMessage] = ()
    tools: Sequence[AgentTool] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend, counted over its model calls, failed and redirected ones included.

    None is unlimited. Checked before each model call, so the last call may go beyond a limit. Tool
    calls count as the model makes them, refused ones included.
    """

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What model calls used."""

    tokens: int = 0
    cost_usd: float = 0.0


StreamFn = Callable[[Model, Context, StreamOptions], EventStream]
ConvertToLlm = Callable[[Sequence[AgentMessage]], Sequence[Message]]
TransformContext = Callable[
    [Sequence[AgentMessage], AbortSignal], Awaitable[Sequence[AgentMessage]]
]
GetApiKey = Callable[[str], Awaitable[str | None]]
DrainSteering = Callable[[], Sequence[QueuedMessage]]
DrainFollowUps = Callable[[], Awaitable[Sequence[QueuedMessage]]]


WatchLoop = Callable[["AgentContext", "LoopConfig"], "Callable[[AgentEvent], None] | None"]
"""Asked as a run begins; what it gives sees every event but the growth of messages, and must
neither raise nor wait. None: this run is not watched."""


def standard_messages(messages: Sequence[AgentMessage]) -> Sequence[Message]:
    """The messages that every model understands; answers without any content are left out."""
    return [
        message
        for message in messages
        if isinstance(message, UserMessage | ToolResultMessage)
        or (isinstance(message, AssistantMessage) and message.content)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """How a run works. The same record may serve any number of runs.

    `stream_fn` is the model: `Client.stream` of lemon_ai, or a wrapper around it.
    `get_api_key` is asked before every model call with the provider's name (tokens may be short
    lived); without it, or with its None, the key of `stream_options` counts.
    `transform_context` changes what one call is shown (trimming, injection), never the history.
    `max_tool_turns` bounds the turns that run tools, per prompt or follow-up; None is unbounded.
    `compact` keeps the conversation within the model's window, in a step before each model call.
    `max_tool_concurrency` bounds the tool calls of one turn that run at once.
    `tool_schema_snapshot`: pass the one of your `SchemaCache`, so that schemas are serialised once
    per configuration and not once per run; it must be of the context's tools.
    `spent_elsewhere` is asked before each model call for what others have used on the run's behalf:
    the budget counts it too.
    `cwd` and `run` are handed to the tools untouched. `watch` sees what happens, for telemetry.
    """

    model: Model
    stream_fn: StreamFn
    stream_options: StreamOptions = field(default_factory=StreamOptions)
    get_api_key: GetApiKey | None = None
    convert_to_llm: ConvertToLlm = standard_messages
    transform_context: TransformContext | None = None
    get_steering_messages: DrainSteering | None = None
    get_follow_up_messages: DrainFollowUps | None = None
    max_tool_turns: int | None = 25
    compact: Compaction | None = None
    budget: Budget | None = None
    spent_elsewhere: Callable[[], Spent] | None = None
    max_tool_concurrency: int | None = None
    tool_timeout_ms: int | None = None
    tool_schema_snapshot: ToolSchemaSnapshot | None = None
    cwd: str | None = None
    run: ExecutionContext | None = None
    watch: WatchLoop | None = None

    def __post_init__(self) -> None:
        for name in ("max_tool_turns", "max_tool_concurrency", "tool_timeout_ms"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
