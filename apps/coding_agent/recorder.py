"""Keeps what a run says in its session, and sees to it that nothing happens unrecorded.

A tool that changes something begins when its call is on disk, and a further model call when
everything it builds on is: after a crash the next run knows what may have been done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile

import anyio

from coding_agent.compaction import compaction_facts
from coding_agent.delivered import DeliveredMessage
from coding_agent.guardrails import marked
from coding_agent.outgoing import Outgoing
from coding_agent.session_store import SessionFile
from lemon_agent import (
    AbortSignal,
    AgentEvent,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    CompactionResult,
    MessageEnd,
    SummaryMessage,
    ToolCallContext,
)
from lemon_ai import AssistantMessage, ToolResultMessage, UserMessage, get_tool_calls

Recall = Callable[[UserMessage], Awaitable[str | None]]


class Recorder:
    """One per run; `session` is the conversation that the run continues.

    `recall` is asked once for each message that the user adds while the run goes on; `outgoing`
    limits what is sent of earlier answers.
    """

    def __init__(
        self,
        session: SessionFile,
        recall: Recall | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._session = session
        self._recall, self._outgoing = recall, outgoing
        self._open_calls: set[str] = set()
        self.tool_calls = self.tool_errors = 0
        self._changed = anyio.Event()
        self._is_first_call = True
        self._asked_for: dict[int, AgentMessage] = {}

    def note(self, events: Iterable[AgentEvent]) -> bool:
        """Take the messages of these events; whether there were any to flush."""
        messages = [event.message for event in events if isinstance(event, MessageEnd)]
        for message in messages:
            self._session.append(message)
            if isinstance(message, AssistantMessage):
                self._open_calls.update(call.id for call in get_tool_calls(message))
            elif isinstance(message, ToolResultMessage):
                self._open_calls.discard(message.tool_call_id)
                self.tool_calls += 1
                self.tool_errors += message.is_error
        if messages:
            self._changed.set()
            self._changed = anyio.Event()
        return bool(messages)

    def flush_at_once(self) -> bool:
        """Write what was noted, when that is little; False when it needs `flush`."""
        return self._session.flush_at_once()

    async def flush(self) -> bool:
        """Write what was noted; False when the disk did not take it."""
        return await self._session.flush()

    async def before_model_call(
        self, messages: Sequence[AgentMessage], _: AbortSignal
    ) -> Sequence[AgentMessage]:
        """The loop's `transform_context`: what was recalled is put behind the messages it is for,
        and foreign text is marked.

        The first call does not wait: its prompt is being written meanwhile.
        """
        if self._is_first_call:
            self._is_first_call = False
        else:
            await self._recall_for(messages)
            await self._until(lambda: self._session.entry_of(messages[-1]) is not None)
            await self.flush()
        sent = self._session.as_sent(messages)
        return marked(sent if self._outgoing is None else await self._outgoing.limited(sent))

    async def _recall_for(self, messages: Sequence[AgentMessage]) -> None:
        """Recall for what the user has added since the last answer."""
        if self._recall is None:
            return
        for message in takewhile(_is_said, reversed(messages)):
            if isinstance(message, UserMessage) and id(message) not in self._asked_for:
                self._asked_for[id(message)] = message
                if block := await self._recall(message):
                    self._session.attach(message, block)

    async def keep_compaction(self, result: CompactionResult) -> None:
        """The loop's `persist`: the summary becomes an entry behind everything it leaves in place.

        A disk that takes nothing does not stop the run: the entry waits with the others.
        """
        await self._until(lambda: self._session.entry_of(result.kept[-1]) is not None)
        first = next(filter(None, map(self._session.entry_of, result.kept)))
        self._session.add("compaction", firstKeptEntryId=first, **compaction_facts(result))
        await self.flush()

    def guarded(self, tool: AgentTool) -> AgentTool:
        """The tool, whose calls wait until they are on disk when they change something."""
        if not tool.exclusive:
            return tool

        async def execute(call: ToolCallContext) -> AgentToolResult:
            await self._until(lambda: call.tool_call_id in self._open_calls)
            await self.flush()
            return await tool.execute(call)

        return tool.executing(execute)

    async def _until(self, is_noted: Callable[[], bool]) -> None:
        while not is_noted():
            await self._changed.wait()


def _is_said(message: AgentMessage) -> bool:
    """Whether a person wrote this."""
    is_made = isinstance(message, DeliveredMessage | SummaryMessage)
    return isinstance(message, UserMessage) and not is_made
