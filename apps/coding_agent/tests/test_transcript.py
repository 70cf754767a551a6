"""A stored conversation is made fit to go on (specification coding_agent 3 and 11.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_agent.transcript import INTERRUPTED, repaired
from lemon_agent import validate_transcript
from lemon_ai import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)


def user(text: str = "hi") -> UserMessage:
    return UserMessage(content=text)


def asks(*ids: str) -> AssistantMessage:
    return AssistantMessage(content=[ToolCall(id=i, name="bash") for i in ids])


def says(text: str = "yes") -> AssistantMessage:
    return AssistantMessage(content=[TextContent(text=text)])


def result(call_id: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="bash")


def test_a_sound_transcript_stays_as_it_is() -> None:
    messages: list[Message] = [user(), asks("a", "b"), result("b"), result("a"), says()]
    assert repaired(messages) == messages


@pytest.mark.behaviour("coding_agent.6")
def test_a_dangling_call_gets_a_result_that_says_so() -> None:
    """At the end, and in the middle where a later run went on."""
    messages: list[Message] = [user(), asks("a"), user(), asks("b", "c"), result("b")]
    whole = repaired(messages)
    assert [getattr(m, "tool_call_id", m.role) for m in whole] == [
        "user",
        "assistant",
        "a",
        "user",
        "assistant",
        "b",
        "c",
    ]
    made = whole[-1]
    assert isinstance(made, ToolResultMessage)
    assert made.content == [TextContent(text=INTERRUPTED)]
    assert made.details == {"restored_session_repair": True, "reason": "interrupted_tool_call"}
    assert (made.is_error, made.tool_name) == (True, "bash")


@pytest.mark.behaviour("coding_agent.6")
@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([user(), result("a"), says()], 1),
        ([user(), says(), user(), asks("a", "a"), result("a")], 3),
        ([user(), asks(" "), result(" ")], 1),
        ([user(), asks("a"), result("a"), result("a"), says()], 3),
        # What is wrong stands before the missing result: the call gets one all the same.
        ([user(), asks("a"), result("x"), result("a"), says()], 3),
    ],
)
def test_anything_else_ends_the_transcript_before_it(messages: list[Message], kept: int) -> None:
    whole = repaired(messages)
    assert len(whole) == kept
    assert validate_transcript(whole) == []


@given(
    st.lists(
        st.one_of(
            st.builds(user),
            st.builds(says),
            st.lists(st.sampled_from("ab "), max_size=3).map(lambda ids: asks(*ids)),
            st.sampled_from("abc").map(result),
        ),
        max_size=12,
    )
)
def test_every_transcript_can_be_continued(messages: list[Message]) -> None:
    whole = repaired(messages)
    assert validate_transcript(whole) == []
    own = [message for message in whole if any(message is m for m in messages)]
    assert own == messages[: len(own)]
