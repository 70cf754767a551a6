"""How large a history is, and how it is cut without parting a tool call from its result.

Sizes are characters, tokens are a quarter of them: good enough to decide when to act, never for
billing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lemon_agent.signal import AbortSignal
from lemon_agent.types import AgentMessage
from lemon_ai import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    get_tool_calls,
)

IMAGE_CHARS: Final = 100
WARNING_CHARS: Final = 200_000
CRITICAL_CHARS: Final = 400_000
CHARS_PER_TOKEN: Final = 4

Strategy = Literal["sliding_window", "keep_bookends"]
SizeLevel = Literal["ok", "warning", "critical"]


# -- size ------------------------------------------------------------------------------------


def message_chars(message: AgentMessage) -> int:
    """The characters of a message: text, thinking, the JSON of tool arguments, 100 per image."""
    if isinstance(message, UserMessage) and isinstance(message.content, str):
        return len(message.content)
    if isinstance(message, UserMessage | AssistantMessage | ToolResultMessage):
        return sum(_block_chars(block) for block in message.content)
    return 0  # an application's own message: what it becomes for a model is not known here


def estimate_size(messages: Sequence[AgentMessage], system_prompt: str = "") -> int:
    """Characters of the history and the system prompt."""
    return len(system_prompt) + sum(map(message_chars, messages))


def tokens_of(chars: int) -> int:
    """About how many tokens so many characters are."""
    return chars // CHARS_PER_TOKEN


def size_level(chars: int) -> SizeLevel:
    """Whether a context of this size deserves a warning; nothing is cut because of it."""
    if chars > CRITICAL_CHARS:
        return "critical"
    return "warning" if chars > WARNING_CHARS else "ok"


@dataclass(frozen=True, slots=True)
class ContextStats:
    """What a context holds; counts only, no text."""

    message_count: int
    char_count: int
    estimated_tokens: int
    by_role: dict[str, int]
    system_prompt_chars: int


def stats(messages: Sequence[AgentMessage], system_prompt: str = "") -> ContextStats:
    """Counts over a context."""
    chars = estimate_size(messages, system_prompt)
    roles = dict(Counter(message.role for message in messages))
    return ContextStats(len(messages), chars, tokens_of(chars), roles, len(system_prompt))


def _block_chars(block: object) -> int:
    match block:
        case TextContent(text=text) | ThinkingContent(thinking=text):
            return len(text)
        case ToolCall(name=name, arguments=arguments):
            return len(name) + len(json.dumps(arguments, ensure_ascii=False, default=str))
        case ImageContent():
            return IMAGE_CHARS
        case _:
            return 0


# -- cutting ---------------------------------------------------------------------------------


def can_begin(messages: Sequence[AgentMessage], index: int) -> bool:
    """Whether a history may begin at `index`, and what is before it may be left out.

    True for a user's or an application's own message, and for an answer all of whose calls have
    their results behind it. A tool result never begins anything.
    """
    message = messages[index]
    if isinstance(message, ToolResultMessage):
        return False
    if not isinstance(message, AssistantMessage):
        return True
    return not missing_results(messages, index)


def missing_results(messages: Sequence[AgentMessage], index: int) -> set[str]:
    """The ids of the calls of the answer at `index` that have no result right behind it."""
    message = messages[index]
    open_ids = (
        {call.id for call in get_tool_calls(message)}
        if isinstance(message, AssistantMessage)
        else set()
    )
    for later in messages[index + 1 :]:
        if not open_ids or not isinstance(later, ToolResultMessage):
            break
        open_ids.discard(later.tool_call_id)
    return open_ids


def truncate(
    messages: Sequence[AgentMessage],
    *,
    max_messages: int = 100,
    max_chars: int = 500_000,
    strategy: Strategy = "sliding_window",
    keep_first_user: bool = True,
) -> tuple[list[AgentMessage], int]:
    """The part of the history within both limits, and how many messages were left out.

    `sliding_window` keeps the newest, and the first user message in front of them;
    `keep_bookends` keeps half from each end. Calls stay with their results and the kept tail does
    not begin with a result, so a little less than the limits may be kept.
    """
    if len(messages) <= max_messages and estimate_size(messages) <= max_chars:
        return list(messages), 0
    if strategy == "keep_bookends":
        head = _head(messages, max_messages // 2, max_chars // 2)
        room = max_chars - estimate_size(messages[:head])
        tail = _tail(messages, max_messages - head, room, floor=head)
        kept = [*messages[:head], *messages[tail:]]
        return kept, len(messages) - len(kept)
    first = _first_user(messages) if keep_first_user else None
    if first is None or message_chars(messages[first]) > max_chars or max_messages < 1:
        tail = _tail(messages, max_messages, max_chars, floor=0)
        return list(messages[tail:]), tail
    room = max_chars - message_chars(messages[first])
    tail = _tail(messages, max_messages - 1, room, floor=first + 1)
    kept = [messages[first], *messages[tail:]]
    return kept, len(messages) - len(kept)


Transform = Callable[[Sequence[AgentMessage], AbortSignal], Awaitable[Sequence[AgentMessage]]]


def make_transform(
    *,
    max_messages: int = 100,
    max_chars: int = 500_000,
    strategy: Strategy = "sliding_window",
    keep_first_user: bool = True,
) -> Transform:
    """`truncate` as `LoopConfig.transform_context`."""

    async def transform(
        messages: Sequence[AgentMessage], _signal: AbortSignal
    ) -> Sequence[AgentMessage]:
        kept, _ = truncate(
            messages,
            max_messages=max_messages,
            max_chars=max_chars,
            strategy=strategy,
            keep_first_user=keep_first_user,
        )
        return kept

    return transform


def _first_user(messages: Sequence[AgentMessage]) -> int | None:
    return next((i for i, m in enumerate(messages) if isinstance(m, UserMessage)), None)


def _tail(messages: Sequence[AgentMessage], count: int, chars: int, *, floor: int) -> int:
    """The smallest index from which the rest fits, begins well, and is not before `floor`."""
    index = len(messages)
    for at in range(len(messages) - 1, floor - 1, -1):
        chars -= message_chars(messages[at])
        if len(messages) - at > count or chars < 0:
            break
        if can_begin(messages, at):
            index = at
    return index


def _head(messages: Sequence[AgentMessage], count: int, chars: int) -> int:
    """The largest length of a beginning that fits and parts no call from its results."""
    length = 0
    for end in range(1, min(count, len(messages)) + 1):
        chars -= message_chars(messages[end - 1])
        if chars < 0:
            break
        if end == len(messages) or can_begin(messages, end):
            length = end
    return length
