"""A stored conversation that has everything in it."""

from __future__ import annotations

from collections.abc import Sequence

from lemon_ai import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

PNG = ImageContent(data="aGk=", mime_type="image/png")
FULL_HISTORY: Sequence[Message] = (
    UserMessage(content="What is this?", timestamp=1),
    UserMessage(content=[TextContent(text="Look:"), PNG], timestamp=1),
    AssistantMessage(
        content=[
            ThinkingContent(thinking="Hm.", thinking_signature="Zm9yZWlnbg=="),
            TextContent(text="I look."),
            ToolCall(id="call_1|fc_1", name="ls", arguments={"path": "a"}),
            ToolCall(id="toolu:2", name="ls"),
        ],
        api="elsewhere",
        provider="somebody",
        model="foreign",
        stop_reason="tool_use",
        timestamp=1,
    ),
    ToolResultMessage(
        tool_call_id="call_1|fc_1",
        tool_name="ls",
        content=[TextContent(text="one"), PNG],
        timestamp=1,
    ),
    ToolResultMessage(
        tool_call_id="toolu:2",
        tool_name="ls",
        content=[TextContent(text="no such folder")],
        is_error=True,
        timestamp=1,
    ),
    AssistantMessage(content=[TextContent(text="It is a picture.")], timestamp=1),
    UserMessage(content="And now?", timestamp=1),
)
