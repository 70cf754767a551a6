"""The message under construction: adapters write into it, events carry it as a live view.

Fragments are collected and joined on demand, so that building an answer is linear in its size.
Each write appends events to a batch that `drain()` hands over; one network read makes one batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lemon_ai.events import (
    BlockEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from lemon_ai.text import parse_arguments, parse_partial_object
from lemon_ai.types import (
    AssistantContent,
    AssistantMessage,
    ErrorInfo,
    Model,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
)


@dataclass(slots=True)
class _Prose:
    """A text or thinking block."""

    kind: Literal["text", "thinking"]
    fragments: list[str] = field(default_factory=list)
    signature: str | None = None
    redacted: str | None = None

    def join(self) -> str:
        if len(self.fragments) > 1:
            self.fragments = ["".join(self.fragments)]
        return self.fragments[0] if self.fragments else ""

    def content(self) -> TextContent | ThinkingContent:
        if self.kind == "text":
            return TextContent(text=self.join(), text_signature=self.signature)
        return ThinkingContent(
            thinking=self.join(), thinking_signature=self.signature, redacted_data=self.redacted
        )


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    fragments: list[str] = field(default_factory=list)
    thought_signature: str | None = None
    ended: ToolCall | None = None

    def join(self) -> str:
        if len(self.fragments) > 1:
            self.fragments = ["".join(self.fragments)]
        return self.fragments[0] if self.fragments else ""

    def content(self) -> ToolCall:
        return self.ended or self._call(parse_partial_object(self.join()), None)

    def end(self) -> ToolCall:
        arguments, problem = parse_arguments(self.join())
        self.ended = self._call(arguments, problem)
        return self.ended

    def _call(self, arguments: dict[str, object], problem: str | None) -> ToolCall:
        return ToolCall(
            id=self.id,
            name=self.name,
            arguments=arguments,
            thought_signature=self.thought_signature,
            arguments_error=problem,
        )


class PartialMessage:
    """What has been received of one answer by now."""

    __slots__ = ("_batch", "_blocks", "_open", "model", "timestamp", "usage")

    def __init__(self, model: Model, timestamp: int) -> None:
        self.model = model
        self.timestamp = timestamp
        self.usage: Usage | None = None
        self._blocks: list[_Prose | _Call] = []
        self._open: _Prose | None = None
        self._batch: list[BlockEvent] = []

    # -- reading -----------------------------------------------------------------------------

    @property
    def has_content(self) -> bool:
        """Whether a block has begun: from then on the call is never repeated."""
        return bool(self._blocks)

    @property
    def has_tool_calls(self) -> bool:
        """Whether any block is a tool call."""
        return any(isinstance(block, _Call) for block in self._blocks)

    def text(self) -> str:
        """The text blocks so far, joined."""
        return "".join(b.join() for b in self._blocks if isinstance(b, _Prose) and b.kind == "text")

    def tool_call(self, index: int) -> ToolCall:
        """The call at `index`, its arguments as far as they can be read by now."""
        return self._call(index).content()

    def snapshot(self) -> AssistantMessage:
        """A frozen copy of everything so far, unfinished tool calls included."""
        return self._message([block.content() for block in self._blocks], "stop")

    def complete(self, stop_reason: StopReason) -> AssistantMessage:
        """The final message of an answer that ended properly."""
        return self._message([block.content() for block in self._blocks], stop_reason)

    def broken(self, stop_reason: StopReason, error: ErrorInfo | None = None) -> AssistantMessage:
        """The final message of an answer that broke off: tool calls that never ended are left out,
        so that nobody can execute half of one."""
        content = [
            block.content()
            for block in self._blocks
            if isinstance(block, _Prose) or block.ended is not None
        ]
        return self._message(content, stop_reason, error)

    def _message(
        self,
        content: list[AssistantContent],
        stop_reason: StopReason,
        error: ErrorInfo | None = None,
    ) -> AssistantMessage:
        return AssistantMessage(
            content=content,
            api=self.model.api,
            provider=self.model.provider,
            model=self.model.id,
            usage=self.usage,
            stop_reason=stop_reason,
            error=error,
            error_message=error.message if error else None,
            timestamp=self.timestamp,
        )

    # -- writing (adapters only) ---------------------------------------------------------------

    def drain(self) -> list[BlockEvent]:
        """The events since the last drain."""
        batch, self._batch = self._batch, []
        return batch

    def add_text(self, delta: str) -> None:
        """Append to the open text block, or close what is open and begin one."""
        if not delta:
            return
        block = self._prose("text")
        block.fragments.append(delta)
        self._batch.append(TextDelta(self, len(self._blocks) - 1, delta))

    def add_thinking(self, delta: str, signature: str | None = None) -> None:
        """Append to the open thinking block, or close what is open and begin one."""
        if not delta:
            return
        block = self._prose("thinking")
        block.signature = block.signature or signature
        block.fragments.append(delta)
        self._batch.append(ThinkingDelta(self, len(self._blocks) - 1, delta))

    def sign_thinking(self, signature: str, *, append: bool = False) -> None:
        """Set the signature of the open thinking block, or of a new one without text."""
        block = self._prose("thinking")
        block.signature = (block.signature or "") + signature if append else signature

    def sign_text(self, signature: str) -> None:
        """Set the signature of the open text block, if any."""
        if self._open is not None and self._open.kind == "text":
            self._open.signature = signature

    def add_redacted(self, data: str) -> None:
        """Add a whole thinking block that only its provider can read."""
        self.close_prose()
        self._prose("thinking").redacted = data
        self.close_prose()

    def start_tool_call(self, call_id: str, name: str) -> int:
        """Begin a tool call; returns its index."""
        self.close_prose()
        self._blocks.append(_Call(call_id, name))
        index = len(self._blocks) - 1
        self._batch.append(ToolCallStart(self, index))
        return index

    def add_arguments(self, index: int, delta: str) -> None:
        """Append raw argument JSON to the call at `index`."""
        if delta:
            self._call(index).fragments.append(delta)
            self._batch.append(ToolCallDelta(self, index, delta))

    def set_tool_call(
        self,
        index: int,
        *,
        call_id: str | None = None,
        name: str | None = None,
        thought_signature: str | None = None,
    ) -> None:
        """Set what is given of the call at `index`; ids and names may arrive late or in pieces."""
        call = self._call(index)
        call.id = call.id if call_id is None else call_id
        call.name = call.name if name is None else name
        call.thought_signature = thought_signature or call.thought_signature

    def arguments_text(self, index: int) -> str:
        """The raw argument JSON of the call at `index`."""
        return self._call(index).join()

    def close_prose(self) -> None:
        """End the open text or thinking block, if any."""
        block, self._open = self._open, None
        if block is None:
            return
        # Nothing can have followed an open block: whatever begins closes it first.
        index = len(self._blocks) - 1
        if block.kind == "text":
            self._batch.append(TextEnd(self, index, block.join()))
        else:
            self._batch.append(ThinkingEnd(self, index, block.join()))

    def close_tool_calls(self) -> None:
        """End every open tool call, in the order they began. Only for an answer that is whole."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, _Call) and block.ended is None:
                self._batch.append(ToolCallEnd(self, index, block.end()))

    def _prose(self, kind: Literal["text", "thinking"]) -> _Prose:
        block = self._open
        if block is not None and block.kind == kind:
            return block
        self.close_prose()
        block = self._open = _Prose(kind)
        self._blocks.append(block)
        start = TextStart if kind == "text" else ThinkingStart
        self._batch.append(start(self, len(self._blocks) - 1))
        return block

    def _call(self, index: int) -> _Call:
        block = self._blocks[index]
        if not isinstance(block, _Call):
            raise IndexError(f"block {index} is not a tool call")
        return block
