"""Keeps what a run says in its session, and sees to it that nothing happens unrecorded.

A tool that changes something begins when its call is on disk, and a further model call when
everything it builds on is: after a crash the next run knows what may have been done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import anyio

from coding_agent.session_store import SessionFile
from lemon_agent import (
    AbortSignal,
    AgentEvent,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    MessageEnd,
    ToolCallContext,
)
from lemon_ai import AssistantMessage, ToolResultMessage, get_tool_calls


class Recorder:
    """`known_count` is how many messages of the conversation there were before the run."""

    def __init__(self, session: SessionFile, known_count: int) -> None:
        self._session = session
        self._count = known_count
        self._open_calls: set[str] = set()
        self._changed = anyio.Event()
        self._is_first_call = True

    def note(self, events: Iterable[AgentEvent]) -> bool:
        """Take the messages of these events; whether there were any to flush."""
        messages = [event.message for event in events if isinstance(event, MessageEnd)]
        for message in messages:
            self._session.append(message)
            self._count += 1
            if isinstance(message, AssistantMessage):
                self._open_calls.update(call.id for call in get_tool_calls(message))
            elif isinstance(message, ToolResultMessage):
                self._open_calls.discard(message.tool_call_id)
        if messages:
            self._changed.set()
            self._changed = anyio.Event()
        return bool(messages)

    async def flush(self) -> bool:
        """Write what was noted; False when the disk did not take it."""
        return await self._session.flush()

    async def before_model_call(
        self, messages: Sequence[AgentMessage], _: AbortSignal
    ) -> Sequence[AgentMessage]:
        """The loop's `transform_context`, which changes nothing.

        The first call does not wait: its prompt is being written meanwhile.
        """
        if self._is_first_call:
            self._is_first_call = False
        else:
            await self._until(lambda: self._count >= len(messages))
            await self.flush()
        return messages

    def guarded(self, tool: AgentTool) -> AgentTool:
        """The tool, whose calls wait until they are on disk when they change something."""
        if not tool.exclusive:
            return tool

        async def execute(call: ToolCallContext) -> AgentToolResult:
            await self._until(lambda: call.tool_call_id in self._open_calls)
            await self.flush()
            return await tool.execute(call)

        return replace(tool, execute=execute)

    async def _until(self, is_noted: Callable[[], bool]) -> None:
        while not is_noted():
            await self._changed.wait()
