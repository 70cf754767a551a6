"""The record of one run: everything the loop's functions read and change, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from lemon_agent.budget import Tally
from lemon_agent.events import (
    AgentEvent,
    LoopStateTransition,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TerminalEvent,
)
from lemon_agent.loop_detection import LoopGuard
from lemon_agent.schema_snapshot import ToolSchemaSnapshot
from lemon_agent.signal import AbortSignal
from lemon_agent.states import LoopState, check_transition
from lemon_agent.types import AgentContext, AgentMessage, AgentTool, LoopConfig

Emit = Callable[[AgentEvent], None]


@dataclass(slots=True)
class RunRecord:
    """`messages` is what the model is shown, `new_messages` what this run added to the history.

    `useless_passes` counts compactions in a row that saved next to nothing. `background` holds the
    tasks of tool calls; the run's end waits for it.
    """

    config: LoopConfig
    signal: AbortSignal
    send: Emit
    system_prompt: str
    messages: list[AgentMessage]
    tools: dict[str, AgentTool]
    snapshot: ToolSchemaSnapshot
    background: TaskGroup = field(init=False)
    new_messages: list[AgentMessage] = field(default_factory=list)
    state: LoopState | None = None
    tally: Tally = field(default_factory=Tally)
    guard: LoopGuard = field(default_factory=LoopGuard)
    tool_turns: int = 0
    useless_passes: int = 0
    ended: bool = False
    # The model that answered last, when it is not the configured one.
    stand_in: str | None = None

    @classmethod
    def begin(
        cls, context: AgentContext, config: LoopConfig, signal: AbortSignal, send: Emit
    ) -> RunRecord:
        """A fresh record with its own copy of the history."""
        snapshot = config.tool_schema_snapshot or ToolSchemaSnapshot.of(context.tools)
        if snapshot.tool_names != tuple(tool.name for tool in context.tools):
            raise ValueError("the tool schema snapshot is not of the tools in the context")
        watch = None if config.watch is None else config.watch(context, config)
        return cls(
            config=config,
            signal=signal,
            send=send if watch is None else _watched(send, watch),
            system_prompt=context.system_prompt,
            messages=list(context.messages),
            tools={normal_name(tool.name): tool for tool in context.tools},
            snapshot=snapshot,
        )

    def emit(self, event: AgentEvent) -> None:
        """Hand an event out; after the terminal one nothing is."""
        if not self.ended:
            self.send(event)

    def finish(self, event: TerminalEvent) -> None:
        """Hand out the terminal event; only the first one counts."""
        if not self.ended:
            self.ended = True
            self.send(event)

    def move(self, target: LoopState) -> None:
        """Enter a state and say so."""
        check_transition(self.state, target)
        origin, self.state = self.state, target
        self.emit(LoopStateTransition(origin, target))

    def add(self, message: AgentMessage) -> None:
        """Append a whole message to history and context, with its pair of events."""
        self.emit(MessageStart(message))
        self.keep(message)

    def keep(self, message: AgentMessage, *, in_context: bool = True) -> None:
        """Append a message that has been announced already."""
        self.new_messages.append(message)
        if in_context:
            self.messages.append(message)
        self.emit(MessageEnd(message))

    def created(self) -> Sequence[AgentMessage]:
        """A copy of the messages of this run, for the terminal event."""
        return tuple(self.new_messages)


def _watched(send: Emit, watch: Emit) -> Emit:
    def both(event: AgentEvent) -> None:
        send(event)
        # One of these is made for every token: too many to be watched.
        if type(event) is not MessageUpdate:
            watch(event)

    return both


def normal_name(name: str) -> str:
    """A tool's name with its white space trimmed and collapsed; case matters."""
    return " ".join(name.split())
