"""The compaction step: when it is due, where it cuts, and what the loop makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_agent import (
    AbortSignal,
    Agent,
    AgentMessage,
    AgentToolResult,
    Budget,
    Compacted,
    Compaction,
    CompactionResult,
    RunFailed,
    Summary,
    SummaryMessage,
    ToolCallContext,
    validate_transcript,
)
from lemon_agent.compaction import context_size, cut_point, is_due
from lemon_agent.context import message_chars
from lemon_agent.tests.harness import calls, make_tool, scene, text_of
from lemon_agent.tests.histories import answer, histories, tool_turn, user
from lemon_ai import AssistantMessage, Usage
from lemon_ai.testing import FakeUsage, HttpError, Turn

pytestmark = pytest.mark.anyio

OVERFLOW = HttpError(400, message="This model's maximum context length is 1000 tokens")


@dataclass
class Notes:
    """What a summary and a storage see; `summary` is what the first one answers."""

    summary: str | Summary | Exception = "they spoke"
    asked: list[list[AgentMessage]] = field(default_factory=list)
    stored: list[CompactionResult] = field(default_factory=list)

    async def summarize(
        self, messages: Sequence[AgentMessage], signal: AbortSignal
    ) -> str | Summary:
        self.asked.append(list(messages))
        if isinstance(self.summary, Exception):
            raise self.summary
        return self.summary

    async def persist(self, result: CompactionResult) -> None:
        self.stored.append(result)

    def compaction(self, window: int = 1_000, **fields: Any) -> Compaction:
        settings = {"reserve_tokens": 100, "keep_recent_tokens": 100, **fields}
        return Compaction(
            context_window=window, summarize=self.summarize, persist=self.persist, **settings
        )


def used(total: int) -> AssistantMessage:
    return answer("hm").model_copy(update={"usage": Usage(total_tokens=total)})


def filler(tokens: int, text: str = "x") -> AgentMessage:
    return user(text * (tokens * 4))


# -- decisions -------------------------------------------------------------------------------


def test_the_size_is_the_last_report_and_an_estimate_of_what_came_since() -> None:
    messages = [filler(50), used(700), filler(25)]
    assert context_size(messages, fixed_chars=400) == 725
    assert context_size([filler(50), filler(25)], fixed_chars=400) == 175
    failed = used(900).model_copy(update={"stop_reason": "error"})
    assert context_size([filler(50), failed], fixed_chars=400) == 150


def test_figures_from_before_a_compaction_do_not_count() -> None:
    kept = [used(900), filler(10)]
    shortened = [SummaryMessage.of("s", len(kept)), *kept]
    assert context_size(shortened, 0) < 100
    assert context_size([*shortened, used(333)], 0) == 333


def test_a_compaction_is_due_by_tokens_or_by_messages() -> None:
    notes = Notes()
    by_tokens = notes.compaction(window=1_000, reserve_tokens=200)
    assert (by_tokens.threshold, is_due(by_tokens, [], 800), is_due(by_tokens, [], 801)) == (
        800, False, True,
    )  # fmt: skip
    assert notes.compaction(window=1_000, reserve_tokens=50).threshold == 900
    # A reserve that is larger than the window would make every call due.
    assert notes.compaction(window=1_000, reserve_tokens=16_384).threshold == 500
    by_count = notes.compaction(message_limit=10)
    assert not is_due(by_count, [user("u")] * 8, 0)
    assert is_due(by_count, [user("u")] * 9, 0)


@pytest.mark.behaviour("lemon_agent.28")
@given(histories(), st.integers(0, 60), st.integers(1, 8), st.none() | st.integers(1, 8))
def test_a_cut_keeps_pairs_whole_and_enough_of_what_is_recent(
    messages: list[AgentMessage], tokens: int, at_least: int, at_most: int | None
) -> None:
    cut = cut_point(messages, tokens, keep_at_least=at_least, keep_at_most=at_most)
    kept = messages[cut:]
    assert validate_transcript(messages[:cut]) == []
    assert validate_transcript(kept) == []
    if cut > 0 and at_most is None:
        assert len(kept) >= at_least
        assert sum(message_chars(m) // 4 for m in kept) >= tokens


def test_a_summary_alone_is_not_summarised_again() -> None:
    assert cut_point([SummaryMessage.of("s", 1), filler(50)], 10) == 0
    assert cut_point([SummaryMessage.of("s", 1), filler(50), filler(50)], 10) == 2


# -- in the loop -----------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_agent.28")
async def test_a_long_tool_loop_is_shortened_before_a_call_in_its_middle() -> None:
    notes = Notes()

    async def look(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("r" * 800)

    turns = [Turn(tool_calls=calls("look").tool_calls, usage=None) for _ in range(12)]
    async with scene(*turns, Turn(text="done")) as s:
        await s.run(user("the task"), tools=[make_tool("look", look)], compact=notes.compaction())
        s.assert_sound()
        requests = [list(r.context.messages) for r in s.adapter.requests]
    assert s.kinds[-1] == "agent_end"
    assert notes.stored
    for request in requests:
        assert validate_transcript(request) == []
        assert sum(message_chars(m) for m in request) // 4 <= 1_000
    # The prompt lives on in the summary alone.
    assert "the task" in [text_of(m) for m in notes.asked[0]]
    after = requests[-1]
    assert isinstance(after[0], SummaryMessage)
    assert "they spoke" in text_of(after[0])
    assert "the task" not in [text_of(m) for m in after]
    states = s.states
    at = states.index("compressing_context")
    assert (states[at - 1], states[at + 1]) == ("awaiting_tool_results", "await_model")


async def test_the_event_and_the_stored_result_tell_what_was_saved() -> None:
    notes = Notes()
    history = [filler(600, "a"), filler(300, "b"), filler(120, "c")]
    async with scene(Turn(text="fine")) as s:
        await s.run(user("go on"), messages=history, compact=notes.compaction())
    event = next(e for e in s.events if isinstance(e, Compacted))
    (stored,) = notes.stored
    assert list(stored.removed) == history[:2]
    assert [text_of(m) for m in stored.kept] == ["c" * 480, "go on"]
    assert (event.tokens_before, event.tokens_after) == (stored.tokens_before, stored.tokens_after)
    assert event.tokens_before > 1_000 > event.tokens_after
    assert (event.removed_messages, event.forced) == (2, False)
    assert event.first_kept is history[2]


@pytest.mark.behaviour("lemon_agent.28")
async def test_an_overflow_is_answered_by_one_forced_compaction() -> None:
    notes = Notes()
    history = [filler(20) for _ in range(10)]
    async with scene(Turn(http_error=OVERFLOW), Turn(text="fits now")) as s:
        await s.run(user("go on"), messages=history, compact=notes.compaction())
        s.assert_sound()
        assert len(s.adapter.requests[1].context.messages) == 7
    assert s.kinds[-1] == "agent_end"
    assert [result.forced for result in notes.stored] == [True]
    assert s.states[1:4] == ["await_model", "compressing_context", "await_model"]


@pytest.mark.behaviour("lemon_agent.28")
async def test_a_second_overflow_is_the_error_of_the_run() -> None:
    notes = Notes()
    history = [filler(20) for _ in range(10)]
    async with scene(Turn(http_error=OVERFLOW), Turn(http_error=OVERFLOW)) as s:
        await s.run(user("go on"), messages=history, compact=notes.compaction())
        s.assert_sound()
        assert len(s.adapter.requests) == 2
    assert isinstance(s.terminal, RunFailed)
    assert s.terminal.reason == "assistant_error"


async def test_an_overflow_after_text_is_no_reason_to_ask_again() -> None:
    notes = Notes()
    broken = Turn(text="half ", stream_error={"message": OVERFLOW.message, "code": 400})
    async with scene(broken) as s:
        await s.run(user("go on"), messages=[filler(20)] * 10, compact=notes.compaction())
        assert len(s.adapter.requests) == 1
    assert notes.stored == []
    assert s.terminal.type == "error"


@pytest.mark.behaviour("lemon_agent.28")
async def test_a_summary_that_fails_is_replaced_by_a_note_of_what_went() -> None:
    notes = Notes(summary=RuntimeError("no model"))
    history = [*tool_turn(1, size=2_400), filler(300), filler(120)]
    async with scene(Turn(text="fine")) as s:
        await s.run(user("go on"), messages=history, compact=notes.compaction())
        shown = s.shown(0)[0]
    assert "3 earlier messages were removed (1 assistant, 1 tool result, 1 user)" in shown


@pytest.mark.behaviour("lemon_agent.28")
async def test_a_summary_that_is_late_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, entered = Notes(), anyio.Event()
    monkeypatch.setattr("lemon_agent.compaction.SUMMARY_TIMEOUT_S", 0)

    async def never(messages: Sequence[AgentMessage], signal: AbortSignal) -> str:
        entered.set()
        await anyio.sleep_forever()
        raise AssertionError

    history = [filler(600), filler(300), filler(120)]
    compaction = Compaction(
        context_window=1_000,
        summarize=never,
        persist=notes.persist,
        reserve_tokens=100,
        keep_recent_tokens=100,
    )
    async with scene(Turn(text="fine")) as s:
        await s.run(user("go on"), messages=history, compact=compaction)
        assert "2 earlier messages were removed (2 user)" in s.shown(0)[0]
    assert entered.is_set()
    assert s.kinds[-1] == "agent_end"


@pytest.mark.behaviour("lemon_agent.28")
async def test_three_useless_passes_end_the_run_naming_the_largest_message() -> None:
    notes = Notes()

    async def as_long(messages: Sequence[AgentMessage], signal: AbortSignal) -> str:
        return "s" * sum(message_chars(message) for message in messages)

    compaction = Compaction(
        context_window=1_000,
        summarize=as_long,
        persist=notes.persist,
        keep_recent_tokens=1_600,
    )
    history = [*(filler(250) for _ in range(6)), *tool_turn(1, size=2_000), filler(60), filler(60)]
    async with scene() as s:
        await s.run(user("go on"), messages=history, compact=compaction)
        s.assert_sound()
        assert s.adapter.requests == []
    assert len(notes.stored) == 3
    assert isinstance(s.terminal, RunFailed)
    assert s.terminal.reason == "context_too_large"
    assert "the largest message is a user of about" in s.terminal.detail


@pytest.mark.behaviour("lemon_agent.28")
async def test_a_result_that_alone_is_too_large_is_named_with_its_tool() -> None:
    notes = Notes()

    async def look(_: ToolCallContext) -> AgentToolResult:
        return AgentToolResult.of_text("r" * 8_000)

    async with scene(calls("look")) as s:
        await s.run(
            user("go on"),
            messages=[filler(100), filler(100)],
            tools=[make_tool("look", look)],
            compact=notes.compaction(),
        )
        s.assert_sound()
        assert len(s.adapter.requests) == 1
    assert isinstance(s.terminal, RunFailed)
    assert s.terminal.reason == "context_too_large"
    assert "the largest message is a tool result of look of about 2000 tokens" in s.terminal.detail


@pytest.mark.behaviour("lemon_agent.101")
async def test_a_fixed_part_above_the_window_is_named_with_its_size() -> None:
    notes = Notes()
    big = make_tool("big", parameters={"type": "object", "description": "d" * 20_000})
    async with scene(default=Turn(text="larger model")) as s:
        await s.run(user("hello"), tools=[big], compact=notes.compaction(window=4_000))
        assert s.adapter.requests == []
        assert isinstance(s.terminal, RunFailed)
        assert s.terminal.reason == "context_too_large"
        assert "the fixed part of the prompt takes about 5" in s.terminal.detail
        assert notes.stored == []
        s.events.clear()
        # The same conversation goes on with a larger window.
        await s.run(user("hello"), tools=[big], compact=notes.compaction(window=40_000))
    assert s.kinds[-1] == "agent_end"


async def test_what_cannot_be_cut_is_sent_as_long_as_it_may_fit() -> None:
    notes = Notes()
    async with scene(Turn(text="fine")) as s:
        await s.run(filler(950), compact=notes.compaction())
    assert s.kinds[-1] == "agent_end"
    assert notes.stored == []


async def test_an_abort_ends_the_step_at_once() -> None:
    notes = Notes()

    async def wait(messages: Sequence[AgentMessage], signal: AbortSignal) -> str:
        signal.abort()
        await anyio.sleep_forever()
        raise AssertionError

    compaction = Compaction(
        context_window=1_000, summarize=wait, persist=notes.persist, keep_recent_tokens=100
    )
    async with scene() as s:
        await s.run(user("go on"), messages=[filler(600)] * 3, compact=compaction)
        s.assert_sound()
        assert s.adapter.requests == []
    assert s.terminal.type == "canceled"
    assert notes.stored == []


async def test_a_summary_counts_against_the_budget() -> None:
    usage = Usage(input=4_000, output=1_000, total_tokens=5_000)
    notes = Notes(summary=Summary("they spoke", usage))
    turns = [Turn(tool_calls=calls("look").tool_calls, usage=FakeUsage(10, 1)), Turn(text="no")]
    async with scene(*turns) as s:
        await s.run(
            user("go on"),
            messages=[filler(600), filler(300), filler(120)],
            tools=[make_tool("look")],
            compact=notes.compaction(),
            budget=Budget(max_tokens=5_000),
        )
        assert len(s.adapter.requests) == 1
    assert "loop_budget_exhausted" in s.kinds


@pytest.mark.behaviour("lemon_agent.28")
async def test_the_next_prompt_of_an_agent_starts_from_the_summary() -> None:
    notes = Notes()
    async with scene(Turn(text="one"), Turn(text="two")) as s:
        config = s.config(compact=notes.compaction())
        history = [filler(600, "a"), filler(300, "b"), filler(120, "c")]
        async with Agent(config, messages=history, follow_up_grace_ms=0) as agent:
            for prompt in ("first", "second"):
                agent.prompt(prompt)
                await agent.wait_for_idle(5)
            messages = agent.messages
        shown = s.shown(1)
    assert len(notes.stored) == 1
    assert isinstance(messages[0], SummaryMessage)
    assert shown[1:] == ["c" * 480, "first", "one", "second"]
