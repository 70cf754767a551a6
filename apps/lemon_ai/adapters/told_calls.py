"""Tool calls and their results in plain words, for where a service takes no others."""

from __future__ import annotations

from lemon_ai.text import dump_json
from lemon_ai.transform import EMPTY_RESULT_TEXT
from lemon_ai.types import TextContent, ToolCall, ToolResultMessage


def told_call(call: ToolCall) -> str:
    """What the model did, as it may stand in its own answer."""
    return f"[Called the tool {call.name} with {dump_json(call.arguments).decode()}]"


def told_result(result: ToolResultMessage) -> str:
    """What came of it, as it may stand in a user's message."""
    what = "failed" if result.is_error else "answered"
    return f"[The tool {result.tool_name} {what}: {result_text(result) or EMPTY_RESULT_TEXT}]"


def result_text(result: ToolResultMessage) -> str:
    """The texts of a result that say something, joined by line breaks."""
    texts = (block.text for block in result.content if isinstance(block, TextContent))
    return "\n".join(text for text in texts if text.strip())
