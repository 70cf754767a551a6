"""What the tests of the loop share: a scripted model, tools, and a record of the events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from lemon_agent import (
    AbortSignal,
    AgentContext,
    AgentEvent,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    LoopConfig,
    LoopStateTransition,
    MessageEnd,
    ToolCallContext,
    ToolExecutionEnd,
    run_loop,
    validate_transcript,
)
from lemon_agent.run_record import Emit
from lemon_ai import AssistantMessage, Client, ToolResultMessage, UserMessage, get_text
from lemon_ai.testing import FakeToolCall, ScriptedAdapter, Turn, scripted_model

HOOKS = ("convert_to_llm", "transform_context", "stream_fn", "get_api_key")
TERMINAL = ("agent_end", "error", "canceled")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def user(text: str = "hi") -> UserMessage:
    return UserMessage(content=text)


def calls(*names: str) -> Turn:
    """A turn that calls these tools without arguments."""
    return Turn(tool_calls=[FakeToolCall(name) for name in names])


def make_tool(
    name: str,
    execute: Callable[[ToolCallContext], Awaitable[Any]] | None = None,
    parameters: dict[str, Any] | None = None,
    *,
    exclusive: bool = False,
) -> AgentTool:
    """A tool; without a body it answers `<name> done`."""

    async def done(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text(f"{name} done")

    return AgentTool(
        name, f"does {name}", parameters or ANY_OBJECT, execute or done, exclusive=exclusive
    )


@dataclass
class HeldTool:
    """A tool that reports being inside and stays there until it is let go."""

    name: str
    inside: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)
    cancelled: bool = False

    async def execute(self, _: ToolCallContext) -> AgentToolResult:
        self.inside.set()
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return AgentToolResult.of_text(f"{self.name} done")

    def tool(self, *, exclusive: bool = False) -> AgentTool:
        return make_tool(self.name, self.execute, exclusive=exclusive)


@dataclass
class Scene:
    """One scripted model and everything that was emitted."""

    adapter: ScriptedAdapter
    client: Client
    signal: AbortSignal = field(default_factory=AbortSignal)
    events: list[AgentEvent] = field(default_factory=list)
    on_event: Emit | None = None

    def config(self, **fields: Any) -> LoopConfig:
        return LoopConfig(**{"model": scripted_model(), "stream_fn": self.client.stream, **fields})

    async def run(
        self,
        *prompts: AgentMessage,
        tools: Sequence[AgentTool] = (),
        messages: Sequence[AgentMessage] = (),
        **fields: Any,
    ) -> list[AgentMessage]:
        """A run of the loop; its events are in `events`, bounded in time."""
        context = AgentContext("be brief", messages, tools)
        with anyio.fail_after(5):
            return await run_loop(
                prompts or (user(),), context, self.config(**fields), self.signal, self.emit
            )

    def emit(self, event: AgentEvent) -> None:
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event)

    # -- what was seen -----------------------------------------------------------------------

    @property
    def kinds(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def terminal(self) -> AgentEvent:
        """The one terminal event, which is the last one."""
        ends = [event for event in self.events if event.type in TERMINAL]
        assert len(ends) == 1, self.kinds
        assert ends[0] is self.events[-1]
        return ends[0]

    @property
    def messages(self) -> list[AgentMessage]:
        """The messages of the history, as `message_end` gave them."""
        return [event.message for event in self.events if isinstance(event, MessageEnd)]

    @property
    def results(self) -> list[ToolResultMessage]:
        return [m for m in self.messages if isinstance(m, ToolResultMessage)]

    @property
    def tool_ends(self) -> list[str]:
        return [event.name for event in self.events if isinstance(event, ToolExecutionEnd)]

    @property
    def states(self) -> list[str]:
        return [str(e.target) for e in self.events if isinstance(e, LoopStateTransition)]

    def shown(self, call: int) -> list[str]:
        """The texts of the messages that the model was shown in this call."""
        return [text_of(message) for message in self.adapter.requests[call].context.messages]

    def assert_sound(self) -> None:
        """One terminal event, whole message pairs, and a transcript that a provider accepts."""
        assert self.terminal.type in TERMINAL
        assert self.kinds.count("message_start") == self.kinds.count("message_end")
        assert validate_transcript(self.messages) == []


@asynccontextmanager
async def scene(*turns: Turn, default: Turn | None = None) -> AsyncIterator[Scene]:
    """A model that answers with these turns."""
    adapter = ScriptedAdapter(turns, default=default)
    async with Client(adapters={"scripted": adapter}) as client:
        yield Scene(adapter, client)


def text_of(message: AgentMessage) -> str:
    """The text of a message of any role."""
    match message:
        case AssistantMessage():
            return get_text(message)
        case UserMessage(content=str() as text):
            return text
        case UserMessage(content=content) | ToolResultMessage(content=content):
            return "".join(getattr(block, "text", "[image]") for block in content)
        case _:
            return message.role


def error_type(result: ToolResultMessage) -> str | None:
    details = result.details
    return details.get("error_type") if isinstance(details, dict) else None


async def steps(count: int = 20) -> None:
    """Let every task of the loop go on for some rounds; no time is waited for."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
