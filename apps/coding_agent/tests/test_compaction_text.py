"""A conversation as text (specification coding_agent 5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_agent.compaction_text import file_facts, plain_summary, transcript
from lemon_agent import AgentMessage, SummaryMessage
from lemon_ai import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

CALLS = AssistantMessage(
    content=[
        ThinkingContent(thinking="secret thoughts"),
        TextContent(text="I look."),
        ToolCall(id="1", name="read", arguments={"path": "a.py"}),
        ToolCall(id="2", name="edit", arguments={"path": "b.py", "old_text": "x"}),
    ]
)
RESULT = ToolResultMessage(
    tool_call_id="1", tool_name="read", content=[TextContent(text="y" * 9_000)], is_error=True
)
MESSAGES: list[AgentMessage] = [
    SummaryMessage.of("what was before", 0),
    UserMessage(content=[TextContent(text="look at this"), ImageContent(data="AAAA")]),
    CALLS,
    RESULT,
]


def test_every_kind_of_message_is_shown_and_thoughts_are_not() -> None:
    text = transcript(MESSAGES, 100_000)
    assert "[Earlier summary]\n" in text
    assert "what was before" in text
    assert "[User]\nlook at this\n[image]" in text
    assert '[Agent calls read] {"path": "a.py"}' in text
    assert "[Result of read, failed]\nyyy" in text
    assert "secret" not in text
    assert len(text) < 2_000


@given(
    lengths=st.lists(st.integers(0, 3_000), max_size=30),
    max_bytes=st.integers(100, 20_000),
    letter=st.sampled_from(["a", "ä", "語", "😀"]),
)
def test_it_never_takes_more_bytes_than_it_may(
    lengths: list[int], max_bytes: int, letter: str
) -> None:
    messages = [UserMessage(content=letter * length) for length in lengths]
    assert len(transcript(messages, max_bytes).encode()) <= max_bytes


def test_the_middle_goes_first() -> None:
    messages = [UserMessage(content=f"message {n} " + "x" * 500) for n in range(100)]
    text = transcript(messages, 10_000)
    assert "message 0 " in text
    assert "message 99 " in text
    assert "message 50 " not in text
    assert text.count("[… left out …]") == 1


def test_without_a_model_it_says_what_was_asked_and_touched() -> None:
    text = plain_summary(MESSAGES)
    assert text == plain_summary(MESSAGES)
    assert "what was before" in text
    assert "4 messages were removed; no model has summarised them." in text
    assert "The user wrote: look at this\n[image]" in text
    assert text.endswith("Files read: a.py\nFiles changed: b.py")
    many = [UserMessage(content=f"wish {n}") for n in range(50)]
    assert "(30 earlier requests are left out.)" in plain_summary(many)
    assert "wish 29\n" not in plain_summary(many)


@pytest.mark.parametrize("arguments", [{}, {"path": None}, {"path": 3}, {"path": ""}])
def test_arguments_that_name_no_file_are_passed_over(arguments: dict[str, object]) -> None:
    call = ToolCall(id="1", name="read", arguments=arguments)
    assert file_facts([AssistantMessage(content=[call])]) == ([], [])
