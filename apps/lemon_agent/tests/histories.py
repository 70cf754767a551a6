"""Histories for the tests of what is cut from them."""

from __future__ import annotations

from hypothesis import strategies as st

from lemon_agent import AgentMessage
from lemon_ai import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def answer(text: str = "", *, calls: int = 0, first_id: int = 0) -> AssistantMessage:
    blocks: list[TextContent | ToolCall] = [TextContent(text=text)] if text else []
    blocks += [ToolCall(id=f"c{first_id + n}", name="look") for n in range(calls)]
    return AssistantMessage(content=blocks, stop_reason="tool_use" if calls else "stop")


def result(call_id: str, text: str = "ok") -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id, tool_name="look", content=[TextContent(text=text)]
    )


def tool_turn(number: int, calls: int = 1, size: int = 2) -> list[AgentMessage]:
    """An answer with calls and all of their results, each of `size` characters."""
    first = number * 10
    results = [result(f"c{first + n}", "r" * size) for n in range(calls)]
    return [answer(calls=calls, first_id=first), *results]


@st.composite
def histories(draw: st.DrawFn) -> list[AgentMessage]:
    """A sound history of user messages, answers and tool turns."""
    messages: list[AgentMessage] = []
    kinds = st.sampled_from(["user", "answer", "tools"])
    for number in range(draw(st.integers(1, 14))):
        size = draw(st.integers(0, 60))
        match draw(kinds):
            case "user":
                messages.append(user("u" * size))
            case "answer":
                messages.append(answer("a" * max(size, 1)))
            case _:
                messages += tool_turn(number, draw(st.integers(1, 3)), size)
    return messages
