"""Stored conversations made fit for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from lemon_ai import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.tests.support import chat_model
from lemon_ai.transform import (
    MISSING_RESULT_TEXT,
    IdRule,
    keep_newest,
    mistral_id,
    openai_chat_id,
    plain_id,
    responses_item_id,
    transform_messages,
)
from lemon_ai.types import AssistantContent, Message, StopReason

MODEL = chat_model()


def answer(
    *blocks: AssistantContent, model: str = MODEL.id, stop_reason: StopReason = "stop"
) -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks),
        api=MODEL.api,
        provider=MODEL.provider,
        model=model,
        stop_reason=stop_reason,
        timestamp=1,
    )


def user(text: str = "x") -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def result(call_id: str, text: str = "r") -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id, tool_name="t", content=[TextContent(text=text)], timestamp=1
    )


def call(call_id: str) -> ToolCall:
    return ToolCall(id=call_id, name="t")


def transformed(*messages: Message) -> list[Message]:
    return transform_messages(messages, MODEL, openai_chat_id)


def test_failed_answers_go_together_with_their_results() -> None:
    failed = answer(call("a"), stop_reason="error")
    aborted = answer(TextContent(text="half"), stop_reason="aborted")
    history: list[Message] = [user(), failed, result("a"), user("y"), aborted, user("z")]
    assert transformed(*history) == [user(), user("y"), user("z")]


def test_a_redirected_answer_stays() -> None:
    redirected = answer(TextContent(text="half"), stop_reason="redirected")
    assert transformed(user(), redirected) == [user(), redirected]


def test_the_same_model_keeps_its_signatures() -> None:
    mine = answer(
        ThinkingContent(thinking="hm", thinking_signature="s"),
        TextContent(text="t", text_signature="s"),
        ToolCall(id="a", name="t", thought_signature="s"),
    )
    assert transformed(user(), mine, result("a")) == [user(), mine, result("a")]


def test_foreign_signatures_go_and_thinking_becomes_text() -> None:
    foreign = answer(
        ThinkingContent(thinking="hm", thinking_signature="s"),
        ThinkingContent(redacted_data="opaque"),
        ThinkingContent(thinking="  "),
        TextContent(text="t", text_signature="s"),
        ToolCall(id="a", name="t", thought_signature="s"),
        model="another",
    )
    assert transformed(user(), foreign, result("a"))[1] == answer(
        TextContent(text="hm"), TextContent(text="t"), call("a"), model="another"
    )


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_goes() -> None:
    history: list[Message] = [
        result("lost"),
        user(),
        answer(call("a"), call("b")),
        result("b"),
        user("y"),
    ]
    out = transformed(*history)
    assert [type(m) for m in out] == [
        UserMessage,
        AssistantMessage,
        ToolResultMessage,
        ToolResultMessage,
        UserMessage,
    ]
    made = out[3]
    assert isinstance(made, ToolResultMessage)
    assert made.tool_call_id == "a"
    assert made.is_error
    assert made.content == [TextContent(text=MISSING_RESULT_TEXT)]


def test_double_calls_and_double_results_are_sent_once() -> None:
    history: list[Message] = [
        user(),
        answer(call("a"), call("a")),
        result("a"),
        result("a", "again"),
    ]
    assert transformed(*history) == [user(), answer(call("a")), result("a")]


def test_what_is_empty_is_not_sent() -> None:
    history: list[Message] = [
        user(" \n"),
        UserMessage(content=[]),
        answer(),
        answer(TextContent(text="  ")),
        answer(ThinkingContent(thinking="only thoughts", thinking_signature="reasoning")),
        user("kept"),
    ]
    assert transformed(*history) == [user("kept")]


def test_images_go_where_the_model_cannot_see() -> None:
    image = ImageContent(data="aGk=")
    history: list[Message] = [
        UserMessage(content=[image], timestamp=1),
        UserMessage(content=[TextContent(text="x"), image], timestamp=1),
    ]
    assert transformed(*history) == [UserMessage(content=[TextContent(text="x")], timestamp=1)]
    seeing = chat_model(input=("text", "image"))
    assert transform_messages(history, seeing, openai_chat_id) == history


def test_ids_of_another_api_are_cut_at_the_bar_and_stay_apart() -> None:
    history: list[Message] = [
        user(),
        answer(call("c|fc_1"), call("c|fc_2")),
        result("c|fc_2"),
        result("c|fc_1"),
    ]
    _, mine, second, first = transformed(*history)
    assert isinstance(mine, AssistantMessage)
    assert isinstance(first, ToolResultMessage)
    assert isinstance(second, ToolResultMessage)
    ids = [block.id for block in mine.content if isinstance(block, ToolCall)]
    assert ids == [first.tool_call_id, second.tool_call_id]
    assert ids[0] == "c"
    assert len(set(ids)) == 2
    assert all(len(call_id) <= 40 for call_id in ids)


ids = st.text(st.characters(codec="ascii"), min_size=1, max_size=60)


RULES: Mapping[IdRule, str] = {
    mistral_id: "[A-Za-z0-9]{9}",
    openai_chat_id: "(?s:.{1,40})",
    plain_id: "[A-Za-z0-9_-]{1,64}",
}


@given(st.lists(ids, min_size=1, max_size=8, unique=True), st.sampled_from(list(RULES)))
def test_every_id_is_legal_unique_and_the_same_for_call_and_result(
    sources: list[str], rule: IdRule
) -> None:
    history: list[Message] = [user(), answer(*map(call, sources)), *map(result, sources)]
    _, mine, *results = transform_messages(history, MODEL, rule)
    assert isinstance(mine, AssistantMessage)
    made = [block.id for block in mine.content if isinstance(block, ToolCall)]
    assert len(set(made)) == len(sources)
    assert made == [m.tool_call_id for m in results if isinstance(m, ToolResultMessage)]
    for call_id in made:
        assert re.fullmatch(RULES[rule], call_id)


def test_pairs_of_ids_are_unique_by_their_first_half() -> None:
    history: list[Message] = [
        user(),
        answer(call("c:1|fc_1"), call("c:1|item/2"), call("c-3")),
        result("c:1|item/2"),
        result("c:1|fc_1"),
        result("c-3"),
    ]
    _, mine, *results = transform_messages(history, MODEL, plain_id, responses_item_id)
    assert isinstance(mine, AssistantMessage)
    first, second, third = (b.id for b in mine.content if isinstance(b, ToolCall))
    assert first == "c_1|fc_1"
    assert second.endswith("|fc_item_2")
    assert second.split("|")[0] != "c_1"
    assert third == "c-3"
    answered = [m.tool_call_id for m in results if isinstance(m, ToolResultMessage)]
    assert answered == [second, first, third]


def test_the_newest_messages_are_kept_without_results_whose_calls_are_gone() -> None:
    history: list[Message] = [user(), answer(call("a")), result("a"), user("y")]
    assert keep_newest(history, None) == keep_newest(history, 4) == history
    assert keep_newest(history, 3) == history[1:]
    assert keep_newest(history, 2) == history[3:]


blocks = st.one_of(
    st.builds(TextContent, text=st.sampled_from(["", " ", "t"])),
    st.builds(ThinkingContent, thinking=st.sampled_from(["", "hm"])),
    st.builds(call, st.sampled_from("abc")),
)
histories = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from(["", "x"])),
        st.builds(
            lambda found, reason, model: answer(*found, stop_reason=reason, model=model),
            st.lists(blocks, max_size=3),
            st.sampled_from(["stop", "error"]),
            st.sampled_from([MODEL.id, "another"]),
        ),
        st.builds(result, st.sampled_from("abcd")),
    ),
    max_size=12,
)


@given(histories)
def test_any_history_becomes_one_a_service_takes(history: list[Message]) -> None:
    """Each call is followed by exactly one result, no result stands alone, nothing is empty."""
    waiting: set[str] = set()
    for message in transformed(*history):
        if isinstance(message, ToolResultMessage):
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting
        if isinstance(message, AssistantMessage):
            assert message.stop_reason == "stop"
            found = [block.id for block in message.content if isinstance(block, ToolCall)]
            waiting = set(found)
            assert len(waiting) == len(found)
            texts = [b.text for b in message.content if isinstance(b, TextContent)]
            assert found or any(text.strip() for text in texts)
        else:
            assert message.content
    assert not waiting
