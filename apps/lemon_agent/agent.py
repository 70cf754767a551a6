"""The stateful agent: a history, two queues and one run at a time around the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskGroup

from lemon_agent.compaction import SummaryMessage
from lemon_agent.errors import AlreadyStreaming, CannotContinue, NoMessages
from lemon_agent.events import (
    AgentEnd,
    AgentEvent,
    Compacted,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RunCanceled,
    RunFailed,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
)
from lemon_agent.loop import run_loop
from lemon_agent.schema_snapshot import ToolSchemaSnapshot
from lemon_agent.signal import AbortSignal
from lemon_agent.subscription import EventSubscription
from lemon_agent.types import AgentContext, AgentMessage, AgentTool, LoopConfig, QueuedMessage
from lemon_ai import AssistantMessage, UserMessage

QueueMode = Literal["one_at_a_time", "all"]
Prompt = str | AgentMessage


@dataclass(frozen=True, slots=True)
class AgentState:
    """A copy of what the agent is doing; `stream_message` is the answer as far as it has come."""

    is_streaming: bool
    messages: tuple[AgentMessage, ...]
    stream_message: AssistantMessage | None
    pending_tool_calls: frozenset[str]
    error: str | None


class Agent:
    """One conversation. `async with` it: leaving aborts the run and waits until nothing is left.

    The queues may be filled at any time; abort keeps what is in them for the next run. `parent` is
    the signal of the run that this agent works for: when that is aborted, so is this agent's run.
    """

    def __init__(
        self,
        config: LoopConfig,
        *,
        system_prompt: str = "",
        tools: Sequence[AgentTool] = (),
        messages: Sequence[AgentMessage] = (),
        steering_mode: QueueMode = "one_at_a_time",
        follow_up_mode: QueueMode = "one_at_a_time",
        follow_up_grace_ms: int = 50,
        parent: AbortSignal | None = None,
    ) -> None:
        self._config = replace(
            config,
            get_steering_messages=self._drain_steering,
            get_follow_up_messages=self._drain_late,
            tool_schema_snapshot=config.tool_schema_snapshot or ToolSchemaSnapshot.of(tools),
        )
        self._system_prompt = system_prompt
        self._parent = parent
        self._tools = tuple(tools)
        self._messages = list(messages)
        self._steering: deque[QueuedMessage] = deque()
        self._follow_ups: deque[QueuedMessage] = deque()
        self._steering_mode = steering_mode
        self._follow_up_mode = follow_up_mode
        self._grace_s = follow_up_grace_ms / 1000
        self._subscriptions: list[EventSubscription] = []
        self._tasks: TaskGroup | None = None
        self._signal: AbortSignal | None = None
        self._idle = anyio.Event()
        self._idle.set()
        # Set while the run waits for a late message at its natural end.
        self._arrival: anyio.Event | None = None
        self._streaming: MessageStart | MessageUpdate | None = None
        self._pending_tool_calls: set[str] = set()
        self._error: str | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self.abort()
        tasks, self._tasks = self._tasks, None
        try:
            return None if tasks is None else await tasks.__aexit__(exc_type, exc, traceback)
        finally:
            for subscription in tuple(self._subscriptions):
                subscription.close()

    # -- runs --------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt | Sequence[AgentMessage]) -> None:
        """Start a run and return at once. Raises `AlreadyStreaming`; nothing is queued here."""
        if isinstance(prompt, Sequence) and not isinstance(prompt, str):
            self._start(prompt)
        else:
            self._start([as_message(prompt)])

    def continue_(self) -> None:
        """Start a run on the history as it is.

        Raises `AlreadyStreaming`, `NoMessages`, or `CannotContinue` after an answer.
        """
        if not self.is_idle:
            raise AlreadyStreaming
        if not self._messages:
            raise NoMessages
        if self._messages[-1].role == "assistant":
            raise CannotContinue("the last message is an answer: send a prompt")
        self._start(())

    def abort(self) -> None:
        """Stop the run, if any; returns at once. Queued messages stay queued."""
        if self._signal is not None:
            self._signal.abort()

    async def wait_for_idle(self, timeout_s: float | None = None) -> None:
        """Return when no run is active; TimeoutError when that takes longer."""
        with anyio.fail_after(timeout_s):
            await self._idle.wait()

    # -- queues ------------------------------------------------------------------------------

    def steer(self, message: Prompt, system_prompt: str | None = None) -> None:
        """Queue for delivery before the next model call of the running turns."""
        self._steering.append(QueuedMessage(as_message(message), system_prompt))
        self._arrived()

    def redirect(self, message: Prompt, system_prompt: str | None = None) -> None:
        """Give up the model call in flight and ask again with this correction.

        While tools run it is a steer; when idle, ending or aborting it is a follow-up.
        """
        signal = self._signal
        if signal is None or signal.aborted or self._arrival is not None:
            self.follow_up(message, system_prompt)
            return
        self._steering.append(QueuedMessage(as_message(message), system_prompt))
        signal.request_redirect()

    def follow_up(self, message: Prompt, system_prompt: str | None = None) -> None:
        """Queue for when the agent would otherwise stop."""
        self._follow_ups.append(QueuedMessage(as_message(message), system_prompt))
        self._arrived()

    def withdraw(self, message: AgentMessage) -> bool:
        """Take back this very message from the queues; False when it is in neither any more."""
        for queue in (self._steering, self._follow_ups):
            for queued in queue:
                if queued.message is message:
                    queue.remove(queued)
                    return True
        return False

    def clear_queues(self) -> list[QueuedMessage]:
        """Empty both queues; what was in them, steering first."""
        cleared = [*self._steering, *self._follow_ups]
        self._steering.clear()
        self._follow_ups.clear()
        return cleared

    # -- views -------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no run is active."""
        return self._signal is None

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """The whole history."""
        return tuple(self._messages)

    @property
    def pending_messages(self) -> tuple[QueuedMessage, ...]:
        """What is queued and not delivered yet, steering first."""
        return (*self._steering, *self._follow_ups)

    @property
    def state(self) -> AgentState:
        """What the agent is doing right now."""
        message = None if self._streaming is None else self._streaming.message
        return AgentState(
            is_streaming=not self.is_idle,
            messages=self.messages,
            stream_message=message if isinstance(message, AssistantMessage) else None,
            pending_tool_calls=frozenset(self._pending_tool_calls),
            error=self._error,
        )

    def subscribe(self) -> EventSubscription:
        """Every event from now on; a reader sees it before the change of state that it causes."""
        subscription = EventSubscription(self._subscriptions.remove)
        self._subscriptions.append(subscription)
        return subscription

    # -- inside ------------------------------------------------------------------------------

    def _start(self, prompts: Sequence[AgentMessage]) -> None:
        if not self.is_idle:
            raise AlreadyStreaming
        if self._tasks is None:
            raise RuntimeError("the agent is not open: use it inside `async with`")
        self._signal = AbortSignal()
        self._idle = anyio.Event()
        self._error = None
        self._tasks.start_soon(self._run, prompts, self._signal)

    async def _run(self, prompts: Sequence[AgentMessage], signal: AbortSignal) -> None:
        context = AgentContext(self._system_prompt, self._messages, self._tools)

        def emit(event: AgentEvent) -> None:
            self._on_event(event, signal)

        parent = nullcontext() if self._parent is None else self._parent.watching(signal.abort)
        try:
            with parent:
                await run_loop(prompts, context, self._config, signal, emit)
        finally:
            self._become_idle(signal)

    def _on_event(self, event: AgentEvent, signal: AbortSignal) -> None:
        for subscription in self._subscriptions:
            subscription.push(event)
        match event:
            case MessageUpdate() | MessageStart():
                self._streaming = event
            case MessageEnd(message=message):
                self._streaming = None
                self._messages.append(message)
            case Compacted(summary=summary, first_kept=first_kept):
                self._shorten(summary, first_kept)
            case ToolExecutionStart(id=call_id):
                self._pending_tool_calls.add(call_id)
            case ToolExecutionEnd(id=call_id):
                self._pending_tool_calls.discard(call_id)
            case TurnEnd(message=message):
                self._error = message.error_message or self._error
            case RunFailed(detail=detail):
                self._error = detail
                self._become_idle(signal)
            case AgentEnd() | RunCanceled():
                self._become_idle(signal)
            case _:
                pass

    def _shorten(self, summary: AgentMessage, first_kept: AgentMessage) -> None:
        """Begin the history with the summary, so that no later run sends what it stands for."""
        at = next(i for i, m in enumerate(self._messages) if m is first_kept)
        if isinstance(summary, SummaryMessage):
            # The history also holds what no model was shown (redirected answers).
            summary = summary.model_copy(update={"kept": len(self._messages) - at})
        self._messages[:at] = [summary]

    def _become_idle(self, signal: AbortSignal) -> None:
        """At the terminal event: a tool that still cleans up does not keep the next prompt out."""
        if self._signal is signal:
            self._signal = None
            self._streaming = None
            self._pending_tool_calls.clear()
            self._idle.set()

    def _arrived(self) -> None:
        if self._arrival is not None:
            self._arrival.set()

    def _drain_steering(self) -> Sequence[QueuedMessage]:
        return _drain(self._steering, self._steering_mode)

    async def _drain_late(self) -> Sequence[QueuedMessage]:
        """The follow-ups at the natural end of a run; waits a moment for one that is on its way.

        Nothing is awaited between the last look into the queues and going idle.
        """
        signal = self._signal
        if signal is not None and not self._follow_ups and self._grace_s > 0:
            self._arrival = anyio.Event()
            with signal.watching(self._arrival.set), anyio.move_on_after(self._grace_s):
                await self._arrival.wait()
            self._arrival = None
            if signal.aborted:
                return ()
        return self._drain_steering() or _drain(self._follow_ups, self._follow_up_mode)


def as_message(prompt: Prompt) -> AgentMessage:
    """A user message for a text, any message as it is."""
    return UserMessage(content=prompt) if isinstance(prompt, str) else prompt


def _drain(queue: deque[QueuedMessage], mode: QueueMode) -> Sequence[QueuedMessage]:
    count = min(len(queue), 1) if mode == "one_at_a_time" else len(queue)
    return [queue.popleft() for _ in range(count)]
