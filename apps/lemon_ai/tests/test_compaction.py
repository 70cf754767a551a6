"""Shortening what a model refused as too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lemon_ai import (
    AssistantMessage,
    Client,
    Context,
    ModelError,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.admission import Admission, Limits
from lemon_ai.compaction import Compacted, CompactingClient, InsufficientMessages, compact
from lemon_ai.testing import FakeChatServer, FakeUsage, HttpError, Turn
from lemon_ai.tests.support import Sleeps, all_events, chat_model, kinds
from lemon_ai.transport import Transport
from lemon_ai.types import Message, get_text_of

pytestmark = pytest.mark.anyio
TOO_LONG = Turn(http_error=HttpError(400, message="prompt is too long: 9 tokens > 8 maximum"))


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def said(text: str) -> AssistantMessage:
    return AssistantMessage(content=[TextContent(text=text)], timestamp=1)


def called(*ids: str) -> AssistantMessage:
    calls = [ToolCall(id=i, name="ls") for i in ids]
    return AssistantMessage(content=calls, stop_reason="tool_use", timestamp=1)


def result(call_id: str) -> ToolResultMessage:
    content = [TextContent(text=f"result of {call_id}")]
    return ToolResultMessage(tool_call_id=call_id, tool_name="ls", content=content, timestamp=1)


def talk(turns: int) -> list[Message]:
    """So many questions with an answer each."""
    return [m for n in range(turns) for m in (user(f"question {n}"), said(f"answer {n}"))]


def texts(messages: Sequence[Message]) -> list[str]:
    return [get_text_of(message) for message in messages]


async def test_the_first_and_the_last_messages_stay() -> None:
    done = await compact(Context(system_prompt="s", messages=talk(5)))
    assert texts(done.context.messages) == [
        "question 0",
        "[5 earlier messages (2 turns) were removed to fit the context.]",
        "question 3",
        "answer 3",
        "question 4",
        "answer 4",
    ]
    assert done.context.system_prompt == "s"
    assert done.metadata() == {
        "strategy": "truncation",
        "original_count": 10,
        "new_count": 6,
        "removed_count": 5,
        "tokens_saved": done.tokens_saved,
        "has_summary": False,
    }


async def test_tokens_that_are_saved_are_estimated() -> None:
    long = [user("x" * 4_000) if n in (2, 4) else said("y") for n in range(10)]
    assert 1_900 < (await compact(Context(messages=long))).tokens_saved < 2_100


async def test_few_removed_messages_need_no_note() -> None:
    done = await compact(Context(messages=talk(4)), preserve_recent=5)
    assert (done.removed_count, done.new_count) == (2, 6)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_too_little_to_remove(count: int) -> None:
    with pytest.raises(InsufficientMessages, match=f"{2 * count} messages"):
        await compact(Context(messages=talk(count)))


async def test_nothing_but_results_of_one_turn_cannot_be_cut() -> None:
    messages: list[Message] = [called("a", "b", "c", "d", "e", "f"), *map(result, "abcdef")]
    with pytest.raises(InsufficientMessages):
        await compact(Context(messages=messages))


@pytest.mark.behaviour("lemon_ai.19")
@pytest.mark.parametrize("recent", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("first", [[user("q")], [called("z"), result("z")]])
async def test_a_call_is_never_parted_from_its_results(recent: int, first: list[Message]) -> None:
    messages = [
        *first,
        *talk(2),
        called("a", "b"),
        result("a"),
        result("b"),
        called("c"),
        result("c"),
        said("end"),
    ]
    done = await compact(Context(messages=messages), preserve_recent=recent)
    made = [
        c.id
        for m in done.context.messages
        if isinstance(m, AssistantMessage)
        for c in m.content
        if isinstance(c, ToolCall)
    ]
    answered = [m.tool_call_id for m in done.context.messages if isinstance(m, ToolResultMessage)]
    assert made == answered
    assert done.context.messages[0] == first[0]


async def test_a_summary_is_made_by_the_caller() -> None:
    seen: list[Sequence[Message]] = []

    async def summarize(messages: Sequence[Message]) -> str:
        seen.append(messages)
        return "They spoke of fruit."

    context = Context(messages=talk(6))
    done = await compact(context, "summarization", summarize=summarize)
    assert done.has_summary
    assert get_text_of(done.context.messages[1]).endswith("\n\nThey spoke of fruit.")
    assert texts(seen[0])[0] == "answer 0"
    hybrid = await compact(context, "hybrid", summarize=summarize)
    assert (hybrid.new_count, hybrid.has_summary) == (8, True)
    alone = await compact(context, "summarization")
    assert (alone.has_summary, alone.new_count) == (False, 6)
    assert not (await compact(context, summarize=summarize)).has_summary


async def test_fewer_messages_stay_until_a_target_is_met() -> None:
    messages: list[Message] = [user("q"), *(user("x" * 400) for _ in range(9))]
    counts = [
        (await compact(Context(messages=messages), target_tokens=target)).new_count
        for target in (10_000, 300, 1)
    ]
    assert counts == [6, 4, 3]


@pytest.mark.behaviour("lemon_ai.19")
async def test_a_call_that_is_too_long_is_tried_again_with_less(client: Client) -> None:
    seen: list[tuple[str, Mapping[str, float]]] = []
    client.telemetry.subscribe(lambda name, numbers, facts: seen.append((name, numbers)))
    async with FakeChatServer([TOO_LONG, TOO_LONG, Turn(text="hi there")]) as server:
        compacting = CompactingClient(client)
        async with compacting.stream(chat_model(server.base_url), Context(messages=talk(8))) as s:
            events = [event async for event in s]
            assert s.partial.text() == "hi there"
    assert kinds(events) == ["start", "text_start", "text_delta", "text_end", "done"]
    counts = [len(request.body["messages"]) for request in server.requests]
    assert counts == [16, 6, 4]
    told = [name.removeprefix("lemon_ai.") for name, _ in seen]
    assert [name for name in told if name.startswith("compaction")] == [
        "compaction.started",
        "compaction.succeeded",
        "compaction.retry",
    ] * 2


@pytest.mark.behaviour("lemon_ai.19")
async def test_it_stops_after_three_attempts(client: Client) -> None:
    async with FakeChatServer(default=TOO_LONG) as server:
        compacting = CompactingClient(client)
        with pytest.raises(ModelError, match="prompt is too long"):
            await compacting.complete(chat_model(server.base_url), Context(messages=talk(40)))
        assert len(server.requests) == 4
    assert [len(r.body["messages"]) for r in server.requests] == [80, 6, 4, 3]


@pytest.mark.behaviour("lemon_ai.19")
async def test_an_error_inside_the_stream_counts_before_content_only(client: Client) -> None:
    inside = {"message": "prompt is too long", "code": 400}
    before = Turn(stream_error=inside)
    after = Turn(text="half", stream_error=inside)
    context = Context(messages=talk(8))
    async with FakeChatServer([before, after]) as server:
        compacting = CompactingClient(client)
        model = chat_model(server.base_url)
        async with compacting.stream(model, context) as stream:
            events = [event async for event in stream]
        assert len(server.requests) == 2
    assert kinds(events) == ["start", "text_start", "text_delta", "text_end", "error"]


@pytest.mark.behaviour("lemon_ai.19")
async def test_a_silent_overflow_without_output_counts(client: Client) -> None:
    cut = Turn(finish_reason="length", usage=FakeUsage(input=1_000, output=0))
    async with FakeChatServer([cut, Turn(text="hi")]) as server:
        model = chat_model(server.base_url, context_window=1_000)
        answer = await CompactingClient(client).complete(model, Context(messages=talk(8)))
        assert answer.stop_reason == "stop"
        assert len(server.requests) == 2


async def test_other_errors_and_short_conversations_pass_through(client: Client) -> None:
    refused = Turn(http_error=HttpError(400, message="bad field"))
    async with FakeChatServer([refused, TOO_LONG]) as server:
        model = chat_model(server.base_url)
        compacting = CompactingClient(client)
        with pytest.raises(ModelError, match="bad field"):
            await compacting.complete(model, Context(messages=talk(8)))
        with pytest.raises(ModelError, match="prompt is too long"):
            await compacting.complete(model, Context(messages=talk(1)))
        assert len(server.requests) == 2


async def test_a_refusal_of_admission_is_an_event() -> None:
    admission = Admission(limits_of=lambda provider: Limits(concurrency=1))
    transport = Transport(env={}, sleep=Sleeps())
    gated = Turn(text="hi", gate="g")
    async with (
        FakeChatServer([gated]) as server,
        Client(env={}, transport=transport, admission=admission) as client,
    ):
        model, context = chat_model(server.base_url), Context(messages=talk(1))
        async with client.stream(model, context):
            with pytest.raises(ModelError) as caught:
                await CompactingClient(client).complete(model, context)
        assert caught.value.info().local
        assert caught.value.info().code == "max_concurrency"


async def test_a_plain_client_says_the_same(client: Client) -> None:
    async with FakeChatServer(default=Turn(text="one two")) as server:
        model, context = chat_model(server.base_url), Context(messages=talk(1))
        async with CompactingClient(client).stream(model, context) as stream:
            compacted = [event async for event in stream]
        assert kinds(compacted) == kinds(await all_events(client, model, context))


def test_the_figures_hold_no_text() -> None:
    done = Compacted(Context(messages=talk(1)), "truncation", 5, 3, 2, 10, has_summary=False)
    assert "question" not in repr(done.metadata())
