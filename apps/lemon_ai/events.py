"""The events of a stream.

A stream is `StreamStart`, then blocks, then exactly one terminal event: `StreamDone`,
`StreamError` or `StreamCanceled`. A text or thinking block ends before the next block starts;
several tool calls may be open at once and end together. `index` is the block's position in
`message.content`. These are plain slotted classes: one is made for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from lemon_ai.types import AssistantMessage, StopReason, ToolCall

if TYPE_CHECKING:
    from lemon_ai.partial import PartialMessage


@dataclass(frozen=True, slots=True)
class _WithPartial:
    """`partial` is a live view that goes on growing; `snapshot()` is a frozen copy of it."""

    partial: PartialMessage

    def snapshot(self) -> AssistantMessage:
        """The message as far as it has been received by now."""
        return self.partial.snapshot()


@dataclass(frozen=True, slots=True)
class StreamStart(_WithPartial):
    type: ClassVar[Literal["start"]] = "start"


@dataclass(frozen=True, slots=True)
class TextStart(_WithPartial):
    type: ClassVar[Literal["text_start"]] = "text_start"
    index: int


@dataclass(frozen=True, slots=True)
class TextDelta(_WithPartial):
    type: ClassVar[Literal["text_delta"]] = "text_delta"
    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class TextEnd(_WithPartial):
    type: ClassVar[Literal["text_end"]] = "text_end"
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingStart(_WithPartial):
    type: ClassVar[Literal["thinking_start"]] = "thinking_start"
    index: int


@dataclass(frozen=True, slots=True)
class ThinkingDelta(_WithPartial):
    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ThinkingEnd(_WithPartial):
    type: ClassVar[Literal["thinking_end"]] = "thinking_end"
    index: int
    thinking: str


@dataclass(frozen=True, slots=True)
class ToolCallStart(_WithPartial):
    """A call has begun; its name may still be incomplete (`partial.tool_call(index)`)."""

    type: ClassVar[Literal["tool_call_start"]] = "tool_call_start"
    index: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta(_WithPartial):
    """A raw piece of the argument JSON; the arguments so far: `partial.tool_call(index)`."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd(_WithPartial):
    """The call is whole. A stream that breaks before this event never delivers it."""

    type: ClassVar[Literal["tool_call_end"]] = "tool_call_end"
    index: int
    tool_call: ToolCall


@dataclass(frozen=True, slots=True)
class StreamDone:
    """Terminal: the answer is complete; `reason` is `stop`, `length` or `tool_use`."""

    type: ClassVar[Literal["done"]] = "done"
    reason: StopReason
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class StreamError:
    """Terminal: `message` holds what arrived, `error_message`, `error` and the usage so far."""

    type: ClassVar[Literal["error"]] = "error"
    reason: Literal["error", "aborted"]
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class StreamCanceled:
    """Terminal: the consumer cancelled, or `reason` is `timeout`; `message` is what arrived."""

    type: ClassVar[Literal["canceled"]] = "canceled"
    reason: str
    message: AssistantMessage


BlockEvent = (
    TextStart
    | TextDelta
    | TextEnd
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
)
TerminalEvent = StreamDone | StreamError | StreamCanceled
Event = StreamStart | BlockEvent | TerminalEvent
