"""What makes a stored conversation fit to be continued.

A run that ended in the middle may have left calls without results, which no provider accepts.
Such a call gets a result that says so; anything else that breaks the rule ends the transcript.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lemon_agent import validate_transcript
from lemon_ai import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    get_tool_calls,
)

# The loop's own words for a tool that was stopped: the model reads the same in either case.
INTERRUPTED: Final = "interrupted, outcome unknown"
# Nothing is lost when one of these is called once more.
_HARMLESS: Final = frozenset({"read", "ls", "find", "grep", "webfetch", "websearch"})
_AGAIN: Final = "; it changes nothing, so it can simply be called again"


def repaired(messages: Sequence[Message]) -> list[Message]:
    """The messages as far as they can be continued, with a result for every tool call."""
    whole = list(_with_results(messages))
    while violations := validate_transcript(whole):
        whole = list(_with_results(whole[: violations[0].index]))
    return whole


def _with_results(messages: Sequence[Message]) -> Iterator[Message]:
    open_calls: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, ToolResultMessage):
            open_calls.pop(message.tool_call_id, None)
        else:
            yield from map(_interrupted, open_calls.values())
            open_calls = {}
            if isinstance(message, AssistantMessage):
                open_calls = {call.id: call for call in get_tool_calls(message)}
        yield message
    yield from map(_interrupted, open_calls.values())


def _interrupted(call: ToolCall) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextContent(text=INTERRUPTED + (_AGAIN if call.name in _HARMLESS else ""))],
        details={"restored_session_repair": True, "reason": "interrupted_tool_call"},
        is_error=True,
    )
