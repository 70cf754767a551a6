from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_agent import AbortSignal, AgentMessage, validate_transcript
from lemon_agent.context import (
    Strategy,
    can_begin,
    estimate_size,
    make_transform,
    message_chars,
    size_level,
    stats,
    truncate,
)
from lemon_agent.tests.histories import answer, histories, result, tool_turn, user
from lemon_ai import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    UserMessage,
)

pytestmark = pytest.mark.anyio


class Note:
    """A message of an application's own."""

    role = "note"


def test_every_kind_of_content_has_a_size() -> None:
    image = ImageContent(data="x" * 5_000)
    assert message_chars(user("abc")) == 3
    assert message_chars(UserMessage(content=[TextContent(text="ab"), image])) == 102
    call = ToolCall(id="1", name="read", arguments={"p": "é"})
    said = AssistantMessage(content=[ThinkingContent(thinking="hm"), TextContent(text="ok"), call])
    assert message_chars(said) == 2 + 2 + len("read") + len('{"p": "é"}')
    assert message_chars(result("1", "four")) == 4
    assert message_chars(Note()) == 0


def test_stats_count_without_showing_text() -> None:
    found = stats([user("abcd"), *tool_turn(1, calls=2, size=8)], "system")
    assert found.by_role == {"user": 1, "assistant": 1, "tool_result": 2}
    assert (found.message_count, found.system_prompt_chars) == (4, 6)
    assert found.char_count == 6 + 4 + 2 * len("look{}") + 16
    assert found.estimated_tokens == found.char_count // 4


def test_sizes_are_judged_by_two_limits() -> None:
    levels = [size_level(chars) for chars in (200_000, 200_001, 400_000, 400_001)]
    assert levels == ["ok", "warning", "warning", "critical"]


def test_a_history_may_begin_at_a_message_that_needs_nothing_before_it() -> None:
    messages: list[AgentMessage] = [user("u"), *tool_turn(1, calls=2), answer(calls=1), Note()]
    assert [can_begin(messages, at) for at in range(len(messages))] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


@pytest.mark.behaviour("lemon_agent.15")
@given(
    histories(),
    st.integers(0, 12),
    st.integers(0, 400),
    st.sampled_from(["sliding_window", "keep_bookends"]),
    st.booleans(),
)
def test_what_is_kept_is_sound_in_order_and_within_both_limits(
    messages: list[AgentMessage], count: int, chars: int, strategy: Strategy, keep_first: bool
) -> None:
    kept, dropped = truncate(
        messages,
        max_messages=count,
        max_chars=chars,
        strategy=strategy,
        keep_first_user=keep_first,
    )
    assert validate_transcript(kept) == []
    assert len(kept) + dropped == len(messages)
    assert len(kept) <= count
    assert estimate_size(kept) <= chars
    places = [next(i for i, m in enumerate(messages) if m is one) for one in kept]
    assert places == sorted(places)


@pytest.mark.behaviour("lemon_agent.15")
@given(histories(), st.integers(1, 12), st.integers(0, 400))
def test_the_first_user_message_stays_in_a_sliding_window(
    messages: list[AgentMessage], count: int, chars: int
) -> None:
    first = next((m for m in messages if isinstance(m, UserMessage)), None)
    kept, _ = truncate(messages, max_messages=count, max_chars=chars)
    if first is not None and message_chars(first) <= chars:
        assert any(message is first for message in kept)


def test_the_window_keeps_the_newest_and_the_bookends_both_ends() -> None:
    messages: list[AgentMessage] = [user(str(n)) for n in range(10)]
    window, dropped = truncate(messages, max_messages=4)
    assert [m.content for m in window if isinstance(m, UserMessage)] == ["0", "7", "8", "9"]
    assert dropped == 6
    ends, _ = truncate(messages, max_messages=4, strategy="keep_bookends")
    assert [m.content for m in ends if isinstance(m, UserMessage)] == ["0", "1", "8", "9"]
    whole, dropped = truncate(messages, max_messages=10)
    assert whole == messages
    assert dropped == 0


async def test_a_transform_truncates_for_one_call() -> None:
    messages = [user(str(n)) for n in range(5)]
    shown = await make_transform(max_messages=2)(messages, AbortSignal())
    assert list(shown) == [messages[0], messages[4]]
